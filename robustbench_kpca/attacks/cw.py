"""Carlini & Wagner's L2 attack: minimise the perturbation that causes misclassification, with Adam in tanh space.

Carlini & Wagner (2017), "Towards Evaluating the Robustness of Neural Networks", arXiv:1608.04644, section VI.A;
binary search, early abort and restarts of Adam as in the authors' program.
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
from robustbench_kpca.attacks.shared.rows import choose, none
from robustbench_kpca.protocols.passes import most_passes
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Mask, Query, State

_EDGE = 0.01  # pixels closer than this to 0 or 1 get a wider tanh range
_FOUND_NONE, _NEVER = 1e10, 1e9  # upper bounds of c before the first success, as in the authors' program


@dataclass(frozen=True, config=FORBID)
class CW:
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

    steps: Annotated[int, Field(ge=1, strict=True)]
    lr: Annotated[float, Field(gt=0)]
    binary_steps: Annotated[int, Field(ge=1, strict=True)]
    initial_const: Annotated[float, Field(gt=0)]
    confidence: Annotated[float, Field(ge=0)]

    def most_passes(self, classes: int) -> tuple[int, int]:
        """Return forward and backward passes per restart of a sample that is never misclassified."""
        return most_passes("cw", vars(self), classes)

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin the first run.

        Raises:
            BadInputError: the norm is not L2, or the threat model does not clip to [0, 1].

        """
        require_norm(threat, "cw", "l2")
        require_box(threat, "cw")
        number, no = torch.zeros_like(keys, dtype=torch.float64), torch.zeros_like(keys, dtype=torch.bool)
        return {
            "x": x,
            "clean": x,
            "y": y,
            "half": _half_range(x),
            "w": _to_tanh_space(x, _half_range(x)),
            "mean": torch.zeros_like(x),
            "square": torch.zeros_like(x),
            "const": number + self.initial_const,
            "lower": number,
            "upper": number + _FOUND_NONE,
            "checked": number + torch.inf,  # objective at the last check of the run
            "succeeded": no,  # whether this run has found a misclassified image
            "iteration": torch.zeros_like(keys),
            "run": torch.zeros_like(keys),
            "best": x,
            "best_distance": number + torch.inf,
            "finished": no,
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take one iteration of Adam; at the end of a run, choose the next c."""
        clean, y, half, tanh = state["clean"], state["y"], state["half"], state["w"].tanh()
        shown = (half * tanh).add_(0.5).clamp_(0, 1)
        margins, gradient = query.gradient(shown, lambda logits: threat.sign * margin(logits, y), outside=True)
        far, gap = distance(shown, clean, "l2"), margins.double() + self.confidence
        weight = torch.where(gap > 0, state["const"], 0).to(clean.dtype)
        slope = (per_sample(weight, clean) * gradient).add_((shown - clean).mul_(2))
        slope = slope.mul_(half).mul_(1 - tanh.square_())
        move, mean, square = adam(slope, state["mean"], state["square"], state["iteration"], self.lr)
        closer = (gap < 0) & (far < state["best_distance"])
        objective = far**2 + state["const"] * gap.clamp_min(0)
        check = state["iteration"] % max(1, self.steps // 10) == 0
        stuck = check & ~(objective <= 0.9999 * state["checked"]) & (state["run"] + 1 < self.binary_steps)
        over = stuck | (state["iteration"] + 1 >= self.steps)
        state = record_closest(state, closer, shown, far, threat) | {
            "w": state["w"] - move,
            "mean": mean,
            "square": square,
            "succeeded": state["succeeded"] | (gap < 0),
            "checked": torch.where(check, objective, state["checked"]),
            "iteration": state["iteration"] + 1,
        }
        run = state["run"] + over
        state = state | {"run": run, "finished": run >= self.binary_steps}
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
            "w": choose(over, _to_tanh_space(clean, state["half"]), state["w"]),
            "mean": choose(over, torch.zeros_like(clean), state["mean"]),
            "square": choose(over, torch.zeros_like(clean), state["square"]),
            "const": torch.where(over, chosen, const),
            "lower": lower,
            "upper": upper,
            "checked": state["checked"].masked_fill(over, torch.inf),
            "succeeded": state["succeeded"] & ~over,
            "iteration": state["iteration"].masked_fill(over, 0),
        }


def _half_range(x: Images) -> Images:
    return torch.where((x - 0.5).abs() > 0.5 - _EDGE, 0.5 + _EDGE, 0.5).to(x.dtype)


def _to_tanh_space(x: Images, half: Images) -> Images:
    """Return artanh((x - 1/2) / half), by logarithms: torch.atanh rounds differently by position in the batch."""
    return 0.5 * ((half + (x - 0.5)).log() - (half - (x - 0.5)).log())


ATTACK = CW
