"""C&W as CleverHans 4.0.0 runs it in PyTorch: one long descent in tanh space, and no binary search after a turn.

Papernot et al. (2018), "Technical Report on the CleverHans v2.1.0 Adversarial Examples Library", arXiv:1610.00768;
cleverhans/torch/attacks/carlini_wagner_l2.py. For literal protocols only: `cw` is the attack of Carlini & Wagner.
"""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks._closest import record_closest
from robustbench_kpca.attacks.shared.ball import distance, per_sample, require_box, require_norm
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.protocols.passes import most_passes
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State

_INSIDE = 0.999999  # images are shrunk by this factor, so that artanh is finite


@dataclass(frozen=True, config=FORBID)
class CWOfCleverHans:
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

    steps: Annotated[int, Field(ge=1, strict=True)]
    lr: Annotated[float, Field(gt=0)]
    binary_steps: Annotated[int, Field(ge=1, strict=True)]
    initial_const: Annotated[float, Field(gt=0)]
    confidence: Annotated[float, Field(ge=0)]

    def most_passes(self, classes: int) -> tuple[int, int]:
        """Return forward and backward passes per restart of a sample that is never misclassified."""
        return most_passes("cw_cleverhans", vars(self), classes)

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Enter tanh space.

        Raises:
            BadInputError: the norm is not L2, or the threat model does not clip to [0, 1].

        """
        require_norm(threat, "cw_cleverhans", "l2")
        require_box(threat, "cw_cleverhans")
        number, no = torch.zeros_like(keys, dtype=torch.float64), torch.zeros_like(keys, dtype=torch.bool)
        inside = _INSIDE * (2 * x - 1)
        return {
            "x": x,
            "clean": x,
            "y": y,
            "w": 0.5 * ((1 + inside).log() - (1 - inside).log()),
            "mean": torch.zeros_like(x),
            "square": torch.zeros_like(x),
            "const": number + self.initial_const,
            "found": no,  # whether this run has found a misclassified image
            "ever_found": no,  # whether an earlier run did
            "ever_failed": no,  # whether an earlier run did not
            "iteration": torch.zeros_like(keys),
            "best": x,
            "best_distance": number + torch.inf,
            "finished": no,
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take one iteration of Adam; at the end of a run, change c."""
        clean, y, tanh = state["clean"], state["y"], state["w"].tanh()
        shown = (tanh + 1) / 2
        margins, gradient = query.gradient(shown, lambda logits: threat.sign * margin(logits, y), outside=True)
        far, gap = distance(shown, clean, "l2"), margins.double() + self.confidence
        weight = torch.where(gap > 0, state["const"], 0).to(clean.dtype)
        slope = (per_sample(weight, clean) * gradient + 2 * (shown - clean)) * (1 - tanh**2) / 2
        move, mean, square = adam(slope, state["mean"], state["square"], state["iteration"], self.lr)
        state = record_closest(state, (gap < 0) & (far < state["best_distance"]), shown, far, threat)
        iteration = state["iteration"] + 1
        state = state | {
            "w": state["w"] - move,
            "mean": mean,
            "square": square,
            "found": state["found"] | (gap < 0),
            "iteration": iteration,
            "finished": iteration >= self.binary_steps * self.steps,
        }
        over = iteration % self.steps == 0
        ever_found = state["ever_found"] | (over & state["found"])
        ever_failed = state["ever_failed"] | (over & ~state["found"])
        factor = torch.where(ever_failed, 10.0, 0.5).double().masked_fill(~over | (ever_found & ever_failed), 1)
        return state | {
            "const": state["const"] * factor,
            "found": state["found"] & ~over,
            "ever_found": ever_found,
            "ever_failed": ever_failed,
        }


ATTACK = CWOfCleverHans
