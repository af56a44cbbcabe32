"""Carlini & Wagner's L2 attack: the smallest perturbation that is misclassified, in tanh space, by Adam.

Carlini & Wagner (2017), "Towards Evaluating the Robustness of Neural Networks", arXiv:1608.04644, section VI.A;
binary search, early abort and restarts of Adam as in the authors' program.
"""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks.shared.ball import distance, per_sample, require_box, require_norm
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.strict import FORBID
from robustbench_kpca.types import Images, Keys, Labels, Mask, PerSample, Query, State

_EDGE = 0.01
_FOUND_NONE, _NEVER = 1e10, 1e9  # upper bounds of c before the first success, as in the authors' program


@dataclass(frozen=True, config=FORBID)
class CW:
    """Minimise ||x' - x||_2^2 + c max(z_y - max_{k != y} z_k + confidence, 0) over w, x' = (tanh(w) + 1) / 2.

    Each of `binary_steps` runs of Adam (at most `steps` iterations from x) has its own c: `initial_const`, then ten
    times as much after a failure, and half way between the largest failure and the smallest success once there was
    one. From 10 runs on, the last repeats the smallest success. Ten times a run, a sample whose objective did not fall
    below 0.9999 of what it was at the last check ends its run; the authors decide that for the batch, and forget the
    iterate at the check.

    tanh is flat where it reaches 0 and 1, so that a pixel that is exactly black or white could not move. Pixels of x
    closer than 0.01 to either get a range wider by that, x' = 1/2 + (1/2 + 0.01) tanh(w), whose values are clipped to
    the box, the gradient passing through the clip: the search begins exactly at x, where tanh' is 0.04, not 0.

    The search is outside the ball. The last proposal is the closest image that was misclassified by more than
    `confidence`, if it lies in the ball, else the clean image. The loop stops a sample at its first misclassified
    image in the ball. One that is never broken costs at most `binary_steps` * `steps` forward and backward passes (if
    every run is aborted at its second check, `binary_steps` * (`steps` // 10 + 1)), and 1 forward for the loop's check
    of the last proposal. Nothing is random: one restart is enough.
    """

    steps: Annotated[int, Field(ge=1, strict=True)]
    lr: Annotated[float, Field(gt=0)]
    binary_steps: Annotated[int, Field(ge=1, strict=True)]
    initial_const: Annotated[float, Field(gt=0)]
    confidence: Annotated[float, Field(ge=0)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin the first run.

        Raises:
            BadInputError: the norm is not L2.

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
            "checked": number + torch.inf,  # the objective at the last check of the run
            "succeeded": no,  # in this run
            "iteration": torch.zeros_like(keys),
            "run": torch.zeros_like(keys),
            "best": x,
            "best_distance": number + torch.inf,
            "finished": no,
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take one iteration of Adam; at the end of a run, choose the next c."""
        clean, y, half, tanh = state["clean"], state["y"], state["half"], state["w"].tanh()
        shown = (0.5 + half * tanh).clamp(0, 1)
        margins, gradient = query.gradient(shown, lambda logits: threat.sign * margin(logits, y), outside=True)
        far, gap = distance(shown, clean, "l2"), margins.double() + self.confidence
        weight = torch.where(gap > 0, state["const"], 0).to(clean.dtype)
        slope = per_sample(weight, clean) * gradient + 2 * (shown - clean)
        slope = slope * half * (1 - tanh**2)
        move, mean, square = adam(slope, state["mean"], state["square"], state["iteration"], self.lr)
        closer = (gap < 0) & (far < state["best_distance"])
        objective = far**2 + state["const"] * gap.clamp_min(0)
        check = state["iteration"] % max(1, self.steps // 10) == 0
        over = (check & ~(objective <= 0.9999 * state["checked"])) | (state["iteration"] + 1 >= self.steps)
        if bool(closer.any()):
            state = _note(state, closer, shown, far, threat)
        state = state | {
            "w": state["w"] - move,
            "mean": mean,
            "square": square,
            "succeeded": state["succeeded"] | (gap < 0),
            "checked": torch.where(check, objective, state["checked"]),
            "iteration": state["iteration"] + 1,
        }
        run = state["run"] + over
        state = state | {"run": run, "finished": run >= self.binary_steps}
        return self._next_run(state, over) if bool(over.any()) else state

    def _next_run(self, state: State, over: Mask) -> State:
        """Where a run is `over`, adjust c, forget Adam and begin again at the clean image."""
        const, clean = state["const"], state["clean"]
        upper = torch.where(over & state["succeeded"], torch.minimum(state["upper"], const), state["upper"])
        lower = torch.where(over & ~state["succeeded"], torch.maximum(state["lower"], const), state["lower"])
        chosen = torch.where(upper < _NEVER, (lower + upper) / 2, const * torch.where(state["succeeded"], 1, 10))
        if self.binary_steps >= 10:
            chosen = torch.where(state["run"] == self.binary_steps - 1, upper, chosen)
        again = per_sample(over, clean)
        return state | {
            "w": torch.where(again, _to_tanh_space(clean, state["half"]), state["w"]),
            "mean": state["mean"].masked_fill(again, 0),
            "square": state["square"].masked_fill(again, 0),
            "const": torch.where(over, chosen, const),
            "lower": lower,
            "upper": upper,
            "checked": state["checked"].masked_fill(over, torch.inf),
            "succeeded": state["succeeded"] & ~over,
            "iteration": state["iteration"].masked_fill(over, 0),
        }


def _note(state: State, closer: Mask, shown: Images, far: PerSample, threat: Threat) -> State:
    """Take in the images that are the closest misclassified ones so far."""
    best = torch.where(per_sample(closer, shown), shown, state["best"])
    best_distance = torch.where(closer, far, state["best_distance"])
    near = per_sample(best_distance <= threat.eps, shown)
    return state | {"x": torch.where(near, best, state["clean"]), "best": best, "best_distance": best_distance}


def _half_range(x: Images) -> Images:
    return torch.where((x - 0.5).abs() > 0.5 - _EDGE, 0.5 + _EDGE, 0.5).to(x.dtype)


def _to_tanh_space(x: Images, half: Images) -> Images:
    """Return artanh((x - 1/2) / half), as logarithms: torch.atanh rounds by where in the batch a pixel stands."""
    return 0.5 * ((half + (x - 0.5)).log() - (half - (x - 0.5)).log())


ATTACK = CW
