"""SegPGD: PGD for segmentation; the loss first uses only correct pixels, then gives wrong pixels increasing weight.

Gu, Zhao, Tresp & Torr (2022), "SegPGD: An Effective and Efficient Adversarial Attack for Evaluating and Boosting
Segmentation Robustness", arXiv:2207.12391, algorithm 1.
"""

from typing import Annotated, ClassVar

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import ascent_direction
from robustbench_kpca.attacks.shared.dense_losses import balanced
from robustbench_kpca.attacks.shared.one_gradient import OneGradient
from robustbench_kpca.protocols.threat import StepSize, Threat, parse_step
from robustbench_kpca.types import Images, Logits, PerSample, State


@dataclass(frozen=True, config=FORBID)
class SegPGD(OneGradient):
    """x_{t+1} = Proj(x_t + step_size * direction(grad_x L_t(x_t))), t = 1, ..., T, where T = `steps`.

        L_t = (1 - lambda_t) / n sum_{i right} CE_i + lambda_t / n sum_{i wrong} CE_i,   lambda_t = (t - 1) / (2 T),

    over the n pixels with a label; a pixel is right if its largest logit is that of its label. The first step thus uses
    the right pixels only, and the last weighs both almost equally. Everything else is as in PGD: direction, random
    start, and a cost of `steps` backward and `steps` + 1 forward passes per restart.
    """

    version: ClassVar[int] = 1
    many_labels: ClassVar[bool] = True
    one_label: ClassVar[bool] = False
    most_passes: ClassVar[tuple[str, str]] = ("steps + 1", "steps")
    steps: Annotated[int, Field(ge=1, strict=True)]
    step_size: StepSize
    random_start: StrictBool

    def loss(self, logits: Logits, state: State) -> PerSample:
        """Return L_t; `step` is t - 1."""
        return balanced(logits, state["y"], state["step"] / (2 * self.steps))

    def propose(self, x: Images, gradient: Images, state: State, threat: Threat) -> Images:  # noqa: ARG002
        """Take one step of steepest ascent."""
        return x + parse_step(self.step_size, threat.eps) * ascent_direction(gradient, threat.norm)


ATTACK = SegPGD
