"""Momentum iterative method (MIM): steps along a decaying sum of normalised gradients.

Dong, Liao, Pang, Su, Zhu, Hu & Li (2018), "Boosting Adversarial Attacks with Momentum", arXiv:1710.06081, algorithm 1.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import ascent_direction, per_sample
from robustbench_kpca.attacks.shared.one_gradient import OneGradient
from robustbench_kpca.protocols.threat import StepSize, Threat, parse_step
from robustbench_kpca.types import Images, State


@dataclass(frozen=True, config=FORBID)
class MIM(OneGradient):
    """x_{t+1} = Proj(x_t + step_size * direction(g_{t+1})), t = 0, ..., steps - 1, from the clean image.

    g_{t+1} = decay g_t + grad_x CE(f(x_t), y) / ||grad_x CE(f(x_t), y)||_1, and g_0 = 0. Direction: sign for
    L-infinity, g / ||g||_2 for L2. `step_size` is absolute (`"2/255"`) or relative (`"0.1 eps"`). The attack is
    deterministic: one restart is enough.

    A sample that is never misclassified costs `steps` backward and `steps` + 1 forward passes.
    """

    version: ClassVar[int] = 1
    many_labels: ClassVar[bool] = True
    most_passes: ClassVar[tuple[str, str]] = ("steps + 1", "steps")
    steps: Annotated[int, Field(ge=1, strict=True)]
    step_size: StepSize
    decay: Annotated[float, Field(ge=0)]

    def memory(self, x: Images, threat: Threat) -> State:  # noqa: ARG002
        """Begin without momentum."""
        return {"momentum": torch.zeros_like(x)}

    def propose(self, x: Images, gradient: Images, state: State, threat: Threat) -> Images:
        """Take one step along the momentum."""
        l1_norm = gradient.abs().flatten(1).sum(1).clamp_min(torch.finfo(gradient.dtype).tiny)
        state["momentum"] = self.decay * state["momentum"] + gradient / per_sample(l1_norm, gradient)
        return x + parse_step(self.step_size, threat.eps) * ascent_direction(state["momentum"], threat.norm)


ATTACK = MIM
