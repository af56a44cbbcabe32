"""Fast adaptive boundary attack: searches the closest adversarial image, by projections onto linearised boundaries.

Croce & Hein (2020), "Minimally distorted Adversarial Examples with a Fast Adaptive Boundary Attack", arXiv:1907.02044;
with targets (FAB-T): Croce & Hein (2020), arXiv:2003.01690, section 5.
"""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca.attacks._ball import distance, per_sample, require_box, require_norm, require_untargeted
from robustbench_kpca.attacks._hyperplane import to_hyperplane
from robustbench_kpca.attacks._losses import difference, runners_up
from robustbench_kpca.strict import FORBID
from robustbench_kpca.threat import Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, PerSample, Query, State


@dataclass(frozen=True, config=FORBID)
class FAB:
    """`steps` iterations or, with `targets`, that many for each of the strongest wrong classes in turn.

    Let c be the clean image and pi the hyperplane where the linearisation of z_t - z_y at x is zero, and d(x), d(c)
    the shortest ways from x and from c to pi inside the box. With alpha = min(|d(x)| / (|d(x)| + |d(c)|), alpha_max),

        x' = clip((1 - alpha) (x + eta d(x)) + alpha (c + eta d(c))).

    If x' is misclassified it is a candidate, and the search goes on from c + beta (x' - c). The class t is the target:
    the strongest classes on the clean image other than the label in turn, at most K - 1. With `targets` = 0 it is, in
    each iteration, the class whose linearised boundary is closest to x.

    The search begins at c, leaves the ball, and keeps the closest misclassified image as `best` at `best_distance`
    (infinite if none): the proposal `x` is that image if it lies in the ball, else c. It has no randomness, so a
    second restart repeats the first; and no final search, as the authors' program has none.

    A sample that is never broken costs 2 forward and 1 backward passes an iteration with targets, and without them K
    forward and K - 1 backward; once 1 forward for the clean logits and 1 for the loop's check of `x`.
    """

    steps: Annotated[int, Field(ge=1, strict=True)]
    targets: Annotated[int, Field(ge=0, strict=True)]
    alpha_max: Annotated[float, Field(ge=0, le=1)]
    eta: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    beta: Annotated[float, Field(gt=0, le=1)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at the clean image. Only `step` can ask for the classes: until then there are 0.

        Raises:
            BadInputError: the norm is L1.

        """
        require_norm(threat, "fab", "linf", "l2")
        require_box(threat, "fab")
        require_untargeted(threat, "fab")
        count = torch.zeros_like(keys)
        return {
            "x": x,
            "point": x,
            "best": x,
            "best_distance": torch.full_like(keys, torch.inf, dtype=torch.float64),
            "clean": x,
            "y": y,
            "targets": y[:, None].expand(-1, max(self.targets, 1)),
            "classes": count,
            "run": count,
            "iteration": count,
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Linearise at the point, step to the boundary, look where that is."""
        state = self._aim(state, query)
        clean, y = state["clean"], state["y"]
        moved = self._move(state, threat.norm, query)
        logits = query.logits(moved, outside=True)
        wrong = (logits.argmax(1) != y) | ~torch.isfinite(logits).all(1)
        reach = distance(moved, clean, threat.norm)
        closer = wrong & (reach < state["best_distance"])
        best = torch.where(per_sample(closer, moved), moved, state["best"])
        best_distance = torch.where(closer, reach, state["best_distance"])
        inside = best_distance <= threat.eps
        backward = (clean + self.beta * (moved - clean)).clamp(0, 1)
        iteration = state["iteration"] + 1
        over = iteration >= self.steps
        run = state["run"] + over
        point = torch.where(per_sample(wrong, moved), backward, moved)
        return state | {
            "x": torch.where(per_sample(inside, best), best, clean),
            "point": torch.where(per_sample(over, point), clean, point),
            "best": best,
            "best_distance": best_distance,
            "run": run,
            "iteration": torch.where(over, 0, iteration),
            "finished": run >= ((state["classes"] - 1).clamp(max=self.targets) if self.targets else 1),
        }

    def _aim(self, state: State, query: Query) -> State:
        """Ask for the clean logits of the samples that just started."""
        new = state["classes"] == 0
        if not bool(new.any()):
            return state
        logits = query.rows(new).logits(state["clean"][new])
        targets, classes = state["targets"].clone(), state["classes"].clone()
        targets[new] = runners_up(logits, state["y"][new], targets.shape[1])
        classes[new] = logits.shape[1]
        return state | {"targets": targets, "classes": classes}

    def _move(self, state: State, norm: Norm, query: Query) -> Images:
        """Return x'."""
        x, clean, y = state["point"], state["clean"], state["y"]
        if self.targets:
            target = state["targets"].gather(1, state["run"][:, None])[:, 0]
            value, normal = _linearise(x, y, target, query)
        else:
            value, normal = _closest_boundary(x, y, int(state["classes"].max()), norm, query)
        value_at_clean = value + (normal * (clean - x)).flatten(1).sum(1)
        own = to_hyperplane(x, normal, value, norm)
        theirs = to_hyperplane(clean, normal, value_at_clean, norm)
        lengths = [distance(way, torch.zeros_like(way), norm).clamp_min(1e-8) for way in (own, theirs)]
        alpha = (lengths[0] / (lengths[0] + lengths[1])).clamp(max=self.alpha_max)
        alpha = per_sample(alpha.to(x.dtype), x)
        return ((1 - alpha) * (x + self.eta * own) + alpha * (clean + self.eta * theirs)).clamp(0, 1)


def _linearise(x: Images, y: Labels, target: Labels, query: Query) -> tuple[PerSample, Images]:
    """Return z_t - z_y and its gradient; both are zero where the model gives NaN or infinite logits far outside.

    There the step is a part of the way back to the clean image.
    """
    value, gradient = query.gradient(x, lambda logits: difference(logits, y, target), outside=True)
    usable = torch.isfinite(value) & torch.isfinite(gradient).flatten(1).all(1)
    return torch.where(usable, value, 0).to(x.dtype), torch.where(per_sample(usable, x), gradient, 0)


def _closest_boundary(x: Images, y: Labels, classes: int, norm: Norm, query: Query) -> tuple[PerSample, Images]:
    """Linearise z_t - z_y for every t != y; return that with the least |z_t - z_y| / dual norm of the gradient."""
    value, normal = _linearise(x, y, (y + 1) % classes, query)
    least = _reach(value, normal, norm)
    for offset in range(2, classes):
        other_value, other = _linearise(x, y, (y + offset) % classes, query)
        reach = _reach(other_value, other, norm)
        closer = reach < least
        value, least = torch.where(closer, other_value, value), torch.where(closer, reach, least)
        normal = torch.where(per_sample(closer, x), other, normal)
    return value, normal


def _reach(value: PerSample, normal: Images, norm: Norm) -> PerSample:
    flat = normal.flatten(1)
    return value.abs() / ((flat.abs().sum(1) if norm == "linf" else flat.norm(dim=1)) + 1e-12)


ATTACK = FAB
