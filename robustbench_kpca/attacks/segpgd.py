"""SegPGD: PGD for segmentation; the loss first uses only correct pixels, then gives wrong pixels increasing weight.

Gu, Zhao, Tresp & Torr (2022), "SegPGD: An Effective and Efficient Adversarial Attack for Evaluating and Boosting
Segmentation Robustness", arXiv:2207.12391, algorithm 1.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import (
    ascent_direction,
    project,
    require_norm,
    require_untargeted,
    uniform_in_ball,
)
from robustbench_kpca.attacks.shared.dense_losses import balanced
from robustbench_kpca.protocols.passes import most_passes
from robustbench_kpca.protocols.threat import Threat, parse_step, require_step
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class SegPGD:
    """x_{t+1} = Proj(x_t + step_size * direction(grad_x L_t(x_t))), t = 1, ..., T, where T = `steps`.

        L_t = (1 - lambda_t) / n sum_{i right} CE_i + lambda_t / n sum_{i wrong} CE_i,   lambda_t = (t - 1) / (2 T),

    over the n pixels with a label; a pixel is right if its largest logit is that of its label. The first step thus uses
    the right pixels only, and the last weighs both almost equally. Everything else is as in PGD: direction, random
    start, and a cost of `steps` backward and `steps` + 1 forward passes per restart.
    """

    many_labels: ClassVar[bool] = True
    one_label: ClassVar[bool] = False
    steps: Annotated[int, Field(ge=1, strict=True)]
    step_size: str | float
    random_start: StrictBool

    def __post_init__(self) -> None:
        require_step(self.step_size)

    def most_passes(self, classes: int) -> tuple[int, int]:
        """Return forward and backward passes per restart of a sample that is never misclassified."""
        return most_passes("segpgd", vars(self), classes)

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw x_1.

        Raises:
            BadInputError: a target, or the norm is L1, in which one step moves one number, and clipping undoes it.

        """
        require_untargeted(threat, "segpgd")
        require_norm(threat, "segpgd", "linf", "l2")
        return {
            "x": uniform_in_ball(x, threat, keys) if self.random_start else x,
            "clean": x,
            "y": y,
            "step": torch.zeros_like(keys),  # t - 1
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take one projected step."""
        x, y, step = state["x"], state["y"], state["step"]
        share = step / (2 * self.steps)
        _, gradient = query.gradient(x, lambda logits: balanced(logits, y, share))
        length = parse_step(self.step_size, threat.eps)
        moved = project(x + length * ascent_direction(gradient, threat.norm), state["clean"], threat)
        return state | {"x": moved, "step": step + 1, "finished": step + 1 >= self.steps}


ATTACK = SegPGD
