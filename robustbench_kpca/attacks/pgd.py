"""Projected gradient descent: repeated steps of steepest ascent, each projected onto the ball and the box.

Madry, Makelov, Schmidt, Tsipras & Vladu (2018), "Towards Deep Learning Models Resistant to Adversarial Attacks",
arXiv:1706.06083, section 2.1.
"""

from typing import Annotated, ClassVar

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import ascent_direction
from robustbench_kpca.attacks.shared.one_gradient import OneGradient
from robustbench_kpca.protocols.threat import StepSize, Threat, parse_step
from robustbench_kpca.types import Images, State


@dataclass(frozen=True, config=FORBID)
class PGD(OneGradient):
    """x_{t+1} = Proj(x_t + step_size * direction(grad_x CE(f(x_t), y))), t = 0, ..., steps - 1.

    Direction: sign for L-infinity, the normalised gradient for L2. `x_0` is the clean image or, with `random_start`,
    uniform in the ball. `step_size` is absolute (`"2/255"`) or relative (`"0.25 eps"`). The loss is cross-entropy. A
    sample that is never misclassified costs `steps` backward and `steps + 1` forward passes per restart (the last is
    the loop's check of x_steps).
    """

    version: ClassVar[int] = 1
    many_labels: ClassVar[bool] = True
    most_passes: ClassVar[tuple[str, str]] = ("steps + 1", "steps")
    steps: Annotated[int, Field(ge=1, strict=True)]
    step_size: StepSize
    random_start: StrictBool

    def propose(self, x: Images, gradient: Images, state: State, threat: Threat) -> Images:  # noqa: ARG002
        """Take one step of steepest ascent."""
        return x + parse_step(self.step_size, threat.eps) * ascent_direction(gradient, threat.norm)


ATTACK = PGD
