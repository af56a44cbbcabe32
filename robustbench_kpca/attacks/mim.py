"""Momentum iterative method (MIM): steps along a decaying sum of normalised gradients.

Dong, Liao, Pang, Su, Zhu, Hu & Li (2018), "Boosting Adversarial Attacks with Momentum", arXiv:1710.06081, algorithm 1.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import ascent_direction, per_sample, project, require_norm
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.protocols.passes import most_passes
from robustbench_kpca.protocols.threat import Threat, parse_step, require_step
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class MIM:
    """x_{t+1} = Proj(x_t + step_size * direction(g_{t+1})), t = 0, ..., steps - 1, from the clean image.

    g_{t+1} = decay g_t + grad_x CE(f(x_t), y) / ||grad_x CE(f(x_t), y)||_1, and g_0 = 0. Direction: sign for
    L-infinity, g / ||g||_2 for L2. `step_size` is absolute (`"2/255"`) or relative (`"0.1 eps"`). The attack is
    deterministic: one restart is enough.

    A sample that is never misclassified costs `steps` backward and `steps` + 1 forward passes.
    """

    many_labels: ClassVar[bool] = True
    steps: Annotated[int, Field(ge=1, strict=True)]
    step_size: str | float
    decay: Annotated[float, Field(ge=0)]

    def __post_init__(self) -> None:
        require_step(self.step_size)

    def most_passes(self, classes: int) -> tuple[int, int]:
        """Return forward and backward passes per restart of a sample that is never misclassified."""
        return most_passes("mim", vars(self), classes)

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at the clean image, without momentum.

        Raises:
            BadInputError: the norm is L1, in which one step moves one number, and clipping undoes it.

        """
        require_norm(threat, "mim", "linf", "l2")
        return {
            "x": x,
            "clean": x,
            "y": y,
            "momentum": torch.zeros_like(x),
            "step": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take one projected step along the momentum."""
        x, y = state["x"], state["y"]
        _, gradient = query.gradient(x, lambda logits: threat.sign * cross_entropy(logits, y))
        length = gradient.abs().flatten(1).sum(1).clamp_min(torch.finfo(gradient.dtype).tiny)
        momentum = self.decay * state["momentum"] + gradient / per_sample(length, gradient)
        move = parse_step(self.step_size, threat.eps) * ascent_direction(momentum, threat.norm)
        step = state["step"] + 1
        return state | {
            "x": project(x + move, state["clean"], threat),
            "momentum": momentum,
            "step": step,
            "finished": step >= self.steps,
        }


ATTACK = MIM
