"""Fast minimum-norm attack (FMN): gradient steps in a ball whose radius shrinks on success and grows on failure.

Pintor, Roli, Brendel & Biggio (2021), "Fast Minimum-norm Adversarial Attacks through Adaptive Norm Constraints",
arXiv:2102.12827, algorithm 1.
"""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._closest import begin_in_ball, furthest_corner, misclassified, record_closest
from robustbench_kpca.attacks._l1 import nearest_in_l1
from robustbench_kpca.attacks._linearised import boundary_distance
from robustbench_kpca.attacks.shared.ball import ascent_direction, distance, per_sample, require_box
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, PerSample, Query, State

_LAST_GAMMA = 0.001  # end of the schedule of gamma
_LAST_SHARE = 0.01  # share of the step size at the end of its schedule
OVERSHOOT = 1.01
"""Factor of the radius until the first success; 1 in algorithm 1."""


@dataclass(frozen=True, config=FORBID)
class FMN:
    """delta_{k+1} = clip(Proj_{r_{k+1}}(delta_k - a_k g / ||g||_2)), k = 0, ..., steps - 1, from delta_0 = 0.

    With L = z_y - max_{j != y} z_j at x + delta_k, g its gradient, `Proj` the Euclidean projection onto the ball of the
    threat's norm, q the dual norm, and delta* the closest success so far:

        r_{k+1} = min(r_k (1 - gamma_k), ||delta*||)     if L < 0 (misclassified),
                  1.01 (||delta_k|| + L / ||g||_q)       else, as long as nothing was misclassified,
                  r_k (1 + gamma_k)                      else,

    at most the distance to the furthest corner of the box. On cosine schedules a_k falls from `step_size` to a
    hundredth of it, gamma_k from `gamma` to 0.001.

    The factor 1.01 is ours. Without it, the search nears the boundary from inside and never crosses it wherever the box
    clips every step: of a linear model with pixels at 0 and 1 it then breaks no image, at any distance.

    The search may leave the ball. It keeps the closest misclassified image as `best`: the proposal `x` is that image if
    it lies in the ball, else the clean image. With policy `last`, the whole budget is spent and the closest image
    decides, so that one run gives the accuracy at every smaller eps; with `stop_at_first`, a sample is done at its
    first misclassified image in the ball. A sample that is never misclassified costs `steps` backward and `steps` + 1
    forward passes per restart. The attack is deterministic: one restart is enough.
    """

    version: ClassVar[int] = 2
    most_passes: ClassVar[tuple[str, str]] = ("steps + 1", "steps")
    steps: Annotated[int, Field(ge=1, strict=True)]
    step_size: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    gamma: Annotated[float, Field(gt=0, lt=1)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at the clean image.

        Raises:
            BadInputError: the threat model does not clip to [0, 1].
        """
        require_box(threat, "fmn")
        return begin_in_ball(x, y, keys, math.inf)

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Evaluate the iterate, then change the radius and take a step inside it."""
        at, clean, y, step, norm = state["at"], state["clean"], state["y"], state["step"], threat.norm
        value, gradient = query.gradient(at, lambda logits: margin(logits, y), outside=True)
        broken = misclassified(value)
        delta_norm, had_success = distance(at, clean, norm), torch.isfinite(state["best_distance"])
        state = record_closest(state, broken & (delta_norm < state["best_distance"]), at, delta_norm, threat)
        cosine = (1 + torch.cos(math.pi * step.double() / self.steps)) / 2
        gamma = _LAST_GAMMA + (self.gamma - _LAST_GAMMA) * cosine
        a = self.step_size * (_LAST_SHARE + (1 - _LAST_SHARE) * cosine)
        to_boundary = OVERSHOOT * (delta_norm + boundary_distance(value.double(), gradient.double(), norm))
        grown = torch.where(had_success, state["radius"] * (1 + gamma), to_boundary)
        shrunk = torch.minimum(state["radius"] * (1 - gamma), state["best_distance"])
        radius = torch.minimum(torch.where(broken, shrunk, grown), furthest_corner(clean, norm))
        moved = at - per_sample(a.to(at.dtype), at) * ascent_direction(gradient, "l2")
        return state | {
            "at": _into_ball(moved, clean, radius, norm).clamp(0, 1),
            "radius": radius,
            "step": step + 1,
            "finished": step + 1 >= self.steps,
        }


def _into_ball(x: Images, clean: Images, radius: PerSample, norm: Norm) -> Images:
    """Project onto the ball of every sample's own radius."""
    if norm == "l1":
        return nearest_in_l1(x, clean, radius, clip=False)
    reach = per_sample(radius.to(x.dtype), x)
    if norm == "linf":
        return clean + (x - clean).clamp(-reach, reach)
    delta_norm = per_sample(distance(x, clean, "l2").clamp_min(1e-12).to(x.dtype), x)
    return clean + (x - clean) * (reach / delta_norm).clamp(max=1)


ATTACK = FMN
