"""C&W as CleverHans 4.0.0 runs it in PyTorch: one long descent in tanh space, and no binary search after a turn.

Papernot et al. (2018), "Technical Report on the CleverHans v2.1.0 Adversarial Examples Library", arXiv:1610.00768;
cleverhans/torch/attacks/carlini_wagner_l2.py. For literal protocols only: `cw` is the attack of Carlini & Wagner.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._carlini_wagner import CarliniWagner
from robustbench_kpca.types import Images, Keys, PerSample, State

_INSIDE = 0.999999  # images are shrunk by this factor, so that artanh is finite


@dataclass(frozen=True, config=FORBID)
class CWOfCleverHans(CarliniWagner):
    """Minimise ||x' - x||_2^2 + c max(z_y - max_{k != y} z_k + confidence, 0) over w, x' = (tanh(w) + 1) / 2.

    Three things differ from `cw`. The `binary_steps` runs of `steps` iterations are one descent: neither w nor Adam
    begins anew. No run ends early. And the bounds of c are stored as references to c itself, so that they follow it:
    c is halved after a run that found a misclassified image if every run so far did, ten times as large after one that
    did not if no run so far did, and constant from then on. (The library also weighs every image of a batch by the mean
    c of that batch. Here, as everywhere, images do not depend on each other: this is the library at batch size one.)

    w begins at artanh(0.999999 (2 x - 1)), so a pixel at 0 or 1 hardly moves. The last proposal is the closest image
    misclassified by more than `confidence`, if it lies in the ball, else the clean image. A sample costs `binary_steps`
    * `steps` forward and backward passes, and 1 forward pass for the loop's check.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = ("backwards + 1", "binary_steps * steps")

    def half(self, x: Images) -> Images:
        """Return 1/2."""
        return torch.full_like(x, 0.5)

    def into_tanh_space(self, x: Images) -> Images:
        """Return artanh(0.999999 (2 x - 1))."""
        inside = _INSIDE * (2 * x - 1)
        return 0.5 * ((1 + inside).log() - (1 - inside).log())

    def counters(self, keys: Keys) -> State:
        """Remember whether an earlier run found a misclassified image, and whether one did not."""
        no = torch.zeros_like(keys, dtype=torch.bool)
        return {"ever_found": no, "ever_failed": no}

    def next_const(self, state: State, delta_norm: PerSample, gap: PerSample) -> State:  # noqa: ARG002
        """At the end of a run, change c."""
        iteration = state["iteration"] + 1
        over = iteration % self.steps == 0
        ever_found = state["ever_found"] | (over & state["succeeded"])
        ever_failed = state["ever_failed"] | (over & ~state["succeeded"])
        factor = torch.where(ever_failed, 10.0, 0.5).double().masked_fill(~over | (ever_found & ever_failed), 1)
        return {
            "const": state["const"] * factor,
            "succeeded": state["succeeded"] & ~over,
            "ever_found": ever_found,
            "ever_failed": ever_failed,
            "iteration": iteration,
            "finished": iteration >= self.binary_steps * self.steps,
        }


ATTACK = CWOfCleverHans
