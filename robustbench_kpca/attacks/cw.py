"""Carlini & Wagner's L2 attack: minimise the perturbation that causes misclassification, with Adam in tanh space.

Carlini & Wagner (2017), "Towards Evaluating the Robustness of Neural Networks", arXiv:1608.04644, section VI.A;
binary search, early abort and restarts of Adam as in the authors' program.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._carlini_wagner import CarliniWagner
from robustbench_kpca.attacks.shared.rows import choose, none
from robustbench_kpca.types import Images, Keys, Mask, PerSample, State

_EDGE = 0.01  # pixels closer than this to 0 or 1 get a wider tanh range
_FOUND_NONE, _NEVER = 1e10, 1e9  # upper bounds of c before the first success, as in the authors' program


@dataclass(frozen=True, config=FORBID)
class CW(CarliniWagner):
    """Minimise ||x' - x||_2^2 + c max(z_y - max_{k != y} z_k + confidence, 0) over w, x' = (tanh(w) + 1) / 2.

    Each of `binary_steps` runs of Adam (at most `steps` iterations from x) has its own c: `initial_const` at first, ten
    times as much after a failure, and, after the first success, the mean of the largest c that failed and the smallest
    that succeeded. With 10 or more runs, the last run repeats the smallest c that succeeded. Each run has ten checks: a
    sample whose objective is not below 0.9999 of its value at the last check ends its run, unless it is the last one.
    The authors decide this for the whole batch, in the last run too, and discard the iterate at the check. The batch
    hides that the objective of single samples oscillates: ended there, a search of one run misses what theirs finds.

    The derivative of tanh vanishes as x' approaches 0 or 1, so a pixel at exactly 0 or 1 could not move. Pixels of x
    within 0.01 of either use the wider range x' = 1/2 + (1/2 + 0.01) tanh(w), clipped to the box; the gradient ignores
    the clip. The search thus begins exactly at x, where tanh' is 0.04, not 0.

    The search may leave the ball. The last proposal is the closest image misclassified by more than `confidence`, if it
    lies in the ball, else the clean image. The loop stops a sample at its first misclassified image in the ball. A
    sample that is never misclassified costs at most `binary_steps` * `steps` forward and backward passes (if every run
    but the last stops at its second check, (`binary_steps` - 1) * (`steps` // 10 + 1) + `steps`), and 1 forward pass
    for the loop's check of the last proposal. The attack is deterministic: one restart is enough.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = ("backwards + 1", "binary_steps * steps")
    least_passes: ClassVar[tuple[str, str]] = ("backwards + 1", "binary_steps * min(steps, steps // 10 + 1)")

    def half(self, x: Images) -> Images:
        """Return 1/2, or more at pixels near 0 and 1."""
        return torch.where((x - 0.5).abs() > 0.5 - _EDGE, 0.5 + _EDGE, 0.5).to(x.dtype)

    def into_tanh_space(self, x: Images) -> Images:
        """Return artanh((x - 1/2) / half), by logarithms: torch.atanh rounds differently by position in the batch."""
        half = self.half(x)
        return 0.5 * ((half + (x - 0.5)).log() - (half - (x - 0.5)).log())

    def counters(self, keys: Keys) -> State:
        """Begin the first run."""
        number = torch.zeros_like(keys, dtype=torch.float64)
        return {
            "lower": number,
            "upper": number + _FOUND_NONE,
            "checked": number + torch.inf,  # objective at the last check of the run
            "run": torch.zeros_like(keys),
        }

    def next_const(self, state: State, delta_norm: PerSample, gap: PerSample) -> State:
        """End runs that are stuck or over; choose c by binary search."""
        objective = delta_norm**2 + state["const"] * gap.clamp_min(0)
        check = state["iteration"] % max(1, self.steps // 10) == 0
        stuck = check & ~(objective <= 0.9999 * state["checked"]) & (state["run"] + 1 < self.binary_steps)
        over = stuck | (state["iteration"] + 1 >= self.steps)
        run = state["run"] + over
        state = state | {
            "checked": torch.where(check, objective, state["checked"]),
            "iteration": state["iteration"] + 1,
            "run": run,
            "finished": run >= self.binary_steps,
        }
        return state if none(over) else self._next_run(state, over)

    def _next_run(self, state: State, over: Mask) -> State:
        """Where a run is `over`, choose the next c, reset Adam and restart from the clean image."""
        const, clean = state["const"], state["clean"]
        upper = torch.where(over & state["succeeded"], torch.minimum(state["upper"], const), state["upper"])
        lower = torch.where(over & ~state["succeeded"], torch.maximum(state["lower"], const), state["lower"])
        chosen = torch.where(upper < _NEVER, (lower + upper) / 2, const * torch.where(state["succeeded"], 1, 10))
        if self.binary_steps >= 10:
            chosen = torch.where(state["run"] == self.binary_steps - 1, upper, chosen)
        return state | {
            "w": choose(over, self.into_tanh_space(clean), state["w"]),
            "mean": choose(over, torch.zeros_like(clean), state["mean"]),
            "square": choose(over, torch.zeros_like(clean), state["square"]),
            "const": torch.where(over, chosen, const),
            "lower": lower,
            "upper": upper,
            "checked": state["checked"].masked_fill(over, torch.inf),
            "succeeded": state["succeeded"] & ~over,
            "iteration": state["iteration"].masked_fill(over, 0),
        }


ATTACK = CW
