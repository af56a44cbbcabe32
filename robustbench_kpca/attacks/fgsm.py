"""Fast gradient (sign) method: one step of size eps in the direction of steepest ascent of the cross-entropy.

Goodfellow, Shlens & Szegedy (2015), "Explaining and Harnessing Adversarial Examples", arXiv:1412.6572.
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import ascent_direction
from robustbench_kpca.attacks.shared.one_gradient import OneGradient
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, State


@dataclass(frozen=True, config=FORBID)
class FGSM(OneGradient):
    """x' = Proj(x + eps * sign(grad_x CE(f(x), y))); in L2 the gradient is normalised instead of signed.

    Costs one backward and two forward passes, one of them the loop's check of x'.
    """

    version: ClassVar[int] = 1
    many_labels: ClassVar[bool] = True
    most_passes: ClassVar[tuple[str, str]] = ("2", "1")
    steps: ClassVar[int] = 1  # type: ignore[misc]  # in others it is an option

    def propose(self, x: Images, gradient: Images, state: State, threat: Threat) -> Images:  # noqa: ARG002
        """Take the only step."""
        return x + threat.eps * ascent_direction(gradient, threat.norm)


ATTACK = FGSM
