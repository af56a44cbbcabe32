"""Fast adaptive boundary attack (FAB): search the closest adversarial image by projection onto linearised boundaries.

Croce & Hein (2020), "Minimally distorted Adversarial Examples with a Fast Adaptive Boundary Attack", arXiv:1907.02044;
with targets (FAB-T): Croce & Hein (2020), arXiv:2003.01690, section 5.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._closest import record_closest
from robustbench_kpca.attacks._hyperplane import to_hyperplanes
from robustbench_kpca.attacks._linearised import boundary_distance, linearise
from robustbench_kpca.attacks._targets import aim, runs_of, target_of_run
from robustbench_kpca.attacks.shared.ball import distance, length, per_sample, require_box
from robustbench_kpca.attacks.shared.draws import on_sphere
from robustbench_kpca.attacks.shared.rows import choose
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, PerSample, Query, State


@dataclass(frozen=True, config=FORBID)
class FAB:
    """One run of `steps` iterations or, with `targets`, one run for each of the strongest wrong classes in turn.

    Let c be the clean image and pi the hyperplane where the linearisation of z_t - z_y at x is zero, and d(x), d(c) the
    shortest perturbations from x and from c to pi inside the box. With alpha = min(|d(x)| / (|d(x)| + |d(c)|),
    alpha_max),

        x' = clip((1 - alpha) (x + eta d(x)) + alpha (c + eta d(c))).

    If x' is misclassified, it is a candidate, and the search continues from c + beta (x' - c). The target t is, run by
    run, each of the classes with the largest logits on the clean image other than the label, at most K - 1. With
    `targets` = 0 it is, in each iteration, the class whose linearised boundary is closest to x.

    Every run begins at c or, with `random_start`, on the sphere of radius eps / 2 around it, clipped to the box. In the
    authors' program the first restart begins at c and the others on a sphere whose radius is half the smaller of eps
    and the least distance found; no distance is known at that point of the program, so the radius is eps / 2. Their R
    restarts are therefore a stage with 1 restart without `random_start` (deterministic) and one with R - 1 with it.

    The search may leave the ball. It keeps the closest misclassified image as `best` and its distance as
    `best_distance` (infinite if none): the proposal `x` is that image if it lies in the ball, else c. As in the
    authors' program, there is no final search.

    A sample that is never misclassified costs, per iteration, 2 forward and 1 backward passes with targets, or K
    forward and K - 1 backward passes without; and once, 1 forward pass for the clean logits and 1 for the loop's check
    of `x`.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = (
        "(2 * min(targets, classes - 1) if targets else classes) * steps + 2",
        "min(targets or classes, classes - 1) * steps",
    )
    steps: Annotated[int, Field(ge=1, strict=True)]
    targets: Annotated[int, Field(ge=0, strict=True)]
    alpha_max: Annotated[float, Field(ge=0, le=1)]
    eta: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    beta: Annotated[float, Field(gt=0, le=1)]
    random_start: StrictBool

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin the first run. `classes` is 0 until the first `step` queries the model."""
        require_box(threat, "fab")
        count = torch.zeros_like(keys)
        return {
            "x": x,
            "point": self._start_points(x, threat, keys, count),
            "best": x,
            "best_distance": torch.full_like(keys, torch.inf, dtype=torch.float64),
            "clean": x,
            "y": y,
            "key": keys,
            "targets": y[:, None].expand(-1, max(self.targets, 1)),
            "classes": count,
            "run": count,
            "iteration": count,
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Linearise at the current point, step to the boundary and evaluate the new point."""
        state = aim(state, query)
        clean, y = state["clean"], state["y"]
        moved = self._move(state, threat.norm, query)
        logits = query.logits(moved, outside=True)
        wrong = (logits.argmax(1) != y) | ~torch.isfinite(logits).all(1)
        reach = distance(moved, clean, threat.norm)
        closer = wrong & (reach < state["best_distance"])
        backward = (clean + self.beta * (moved - clean)).clamp(0, 1)
        iteration = state["iteration"] + 1
        over = iteration >= self.steps
        run = state["run"] + over
        point = choose(wrong, backward, moved)
        if not self.random_start:
            point = choose(over, clean, point)
        elif bool(over.any()):
            point = point.clone()
            point[over] = self._start_points(clean[over], threat, state["key"][over], run[over])
        return record_closest(state, closer, moved, reach, threat) | {
            "point": point,
            "run": run,
            "iteration": torch.where(over, 0, iteration),
            "finished": run >= self.runs_of(state),
        }

    def runs_of(self, state: State) -> Labels:
        """Return the number of targets, or 1."""
        return runs_of(state, self.targets) if self.targets else torch.ones_like(state["run"])

    def begin_run(self, state: State, threat: Threat, run: Labels) -> State:
        """Begin at the starting point, with no misclassified image."""
        clean = state["clean"]
        return state | {
            "x": clean,
            "point": self._start_points(clean, threat, state["key"], run),
            "best": clean,
            "best_distance": torch.full_like(state["best_distance"], torch.inf),
            "run": run,
            "iteration": torch.zeros_like(run),
        }

    def join_runs(self, earlier: State, later: State, threat: Threat) -> State:
        """Keep the closest misclassified image of all runs."""
        closer = later["best_distance"] < earlier["best_distance"]
        return record_closest(
            later | {name: earlier[name] for name in ("best", "best_distance")},
            closer,
            later["best"],
            later["best_distance"],
            threat,
        )

    def _start_points(self, clean: Images, threat: Threat, keys: Keys, runs: Labels) -> Images:
        return on_sphere(clean, replace(threat, eps=threat.eps / 2), keys, runs) if self.random_start else clean

    def _move(self, state: State, norm: Norm, query: Query) -> Images:
        x, clean, y = state["point"], state["clean"], state["y"]
        if self.targets:
            ((value, normal),) = linearise(x, y, [target_of_run(state)], query)
        else:
            value, normal = _closest_boundary(x, y, int(state["classes"].max()), norm, query)
        value_at_clean = value + (normal * (clean - x)).flatten(1).sum(1)
        from_x, from_clean = to_hyperplanes([x, clean], normal, [value, value_at_clean], norm)
        lengths = [length(way, norm).clamp_min(1e-8) for way in (from_x, from_clean)]
        alpha = (lengths[0] / (lengths[0] + lengths[1])).clamp(max=self.alpha_max)
        alpha = per_sample(alpha.to(x.dtype), x)
        return ((1 - alpha) * (x + self.eta * from_x) + alpha * (clean + self.eta * from_clean)).clamp(0, 1)


def _closest_boundary(x: Images, y: Labels, classes: int, norm: Norm, query: Query) -> tuple[PerSample, Images]:
    """Linearise z_t - z_y for every t != y; return the one with the least |z_t - z_y| / dual norm of the gradient."""
    planes = linearise(x, y, [(y + offset) % classes for offset in range(1, classes)], query)
    value, normal = next(planes)
    least = boundary_distance(value, normal, norm)
    for other_value, other in planes:
        reach = boundary_distance(other_value, other, norm)
        closer = reach < least
        value, least = torch.where(closer, other_value, value), torch.where(closer, reach, least)
        normal = choose(closer, other, normal)
    return value, normal


ATTACK = FAB
