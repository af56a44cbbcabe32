"""Decoupled direction and norm (DDN), an L2 attack: the gradient sets the direction; success shrinks the norm.

Rony, Hafemann, Oliveira, Ben Ayed, Sabourin & Granger (2019), "Decoupling Direction and Norm for Efficient
Gradient-Based L2 Adversarial Attacks and Defenses", arXiv:1811.09600, algorithm 1.
"""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._closest import begin_in_ball, furthest_corner, misclassified, record_closest
from robustbench_kpca.attacks.shared.ball import distance, per_sample, require_box, require_norm
from robustbench_kpca.attacks.shared.draws import gaussians
from robustbench_kpca.attacks.shared.losses import cross_entropy, margin
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Logits, PerSample, Query, State

_LAST_STEP_SIZE = 0.01  # end of the cosine schedule, which begins at 1


@dataclass(frozen=True, config=FORBID)
class DDN:
    """x_{k+1} = clip(x + r_{k+1} d / ||d||_2), d = (x_k - x) + a_k g / ||g||_2, k = 0, ..., steps - 1, from x_0 = x.

    g = grad_x CE(f(x_k), y), or Gaussian noise where that is zero; r_{k+1} = r_k (1 - gamma) if x_k is misclassified,
    else r_k (1 + gamma), from r_0 = `init_norm`, at most the distance to the furthest corner of the box; a_k decreases
    from 1 to 0.01 on a cosine schedule. Iterates are not rounded to 8 bits, which is an option of the authors' program.

    The search may leave the ball. The last proposal is the closest misclassified iterate if it lies in the ball, else
    the clean image. The loop stops a sample at its first misclassified image in the ball. A sample that is never
    misclassified costs `steps` backward and `steps` + 1 forward passes per restart.
    """

    version: ClassVar[int] = 1
    most_passes: ClassVar[tuple[str, str]] = ("steps + 1", "steps")
    steps: Annotated[int, Field(ge=1, strict=True)]
    gamma: Annotated[float, Field(gt=0, lt=1)]
    init_norm: Annotated[float, Field(gt=0)]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at the clean image.

        Raises:
            BadInputError: the norm is not L2, or the threat model does not clip to [0, 1].
        """
        require_norm(threat, "ddn", "l2")
        require_box(threat, "ddn")
        return begin_in_ball(x, y, keys, self.init_norm) | {"key": keys}

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Evaluate the iterate, then update the direction and the norm of the perturbation."""
        at, clean, y, step = state["at"], state["clean"], state["y"], state["step"]
        margins: list[PerSample] = []

        def loss(logits: Logits) -> PerSample:
            margins.append(margin(logits.detach(), y))
            return cross_entropy(logits, y)

        _, gradient = query.gradient(at, loss, outside=True)
        value, delta_norm = torch.stack(margins).mean(0), distance(at, clean, "l2")
        broken = misclassified(value)
        closer = broken & (delta_norm < state["best_distance"])
        radius = state["radius"]
        radius = torch.where(broken, radius * (1 - self.gamma), radius * (1 + self.gamma))
        radius = torch.minimum(radius, furthest_corner(clean, "l2"))
        return record_closest(state, closer, at, delta_norm, threat) | {
            "at": self._next_iterate(state, gradient, radius),
            "radius": radius,
            "step": step + 1,
            "finished": step + 1 >= self.steps,
        }

    def _next_iterate(self, state: State, gradient: Images, radius: PerSample) -> Images:
        """Return the next iterate, at distance `radius` before clipping."""
        clean, step = state["clean"], state["step"]
        flat = gradient.flatten(1).abs().amax(1) == 0
        if bool(flat.any()):
            gradient = gradient.clone()
            gradient[flat] = gaussians(state["key"][flat], step[flat] + 1, clean[flat])
        step_size = _LAST_STEP_SIZE + (1 - _LAST_STEP_SIZE) * (1 + torch.cos(math.pi * step.double() / self.steps)) / 2
        delta = state["at"] - clean + per_sample(step_size.to(clean.dtype), clean) * _unit(gradient)
        return (clean + per_sample(radius.to(clean.dtype), clean) * _unit(delta)).clamp(0, 1)


def _unit(x: Images) -> Images:
    """Return x / ||x||_2; x is scaled first, so that squares of small numbers do not underflow."""
    x = x / per_sample(x.abs().flatten(1).amax(1).clamp_min(torch.finfo(x.dtype).tiny), x)
    return x / per_sample(x.flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny), x)


ATTACK = DDN
