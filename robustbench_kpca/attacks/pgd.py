"""Projected gradient descent: repeated steps of steepest ascent, each projected onto the ball and the box.

Madry, Makelov, Schmidt, Tsipras & Vladu (2018), "Towards Deep Learning Models Resistant to Adversarial Attacks",
arXiv:1706.06083, section 2.1.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import ascent_direction, project, require_norm, uniform_in_ball
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.protocols.passes import most_passes
from robustbench_kpca.protocols.threat import Threat, parse_step, require_step
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class PGD:
    """x_{t+1} = Proj(x_t + step_size * direction(grad_x CE(f(x_t), y))), t = 0, ..., steps - 1.

    Direction: sign for L-infinity, the normalised gradient for L2. `x_0` is the clean image or, with `random_start`,
    uniform in the ball. `step_size` is absolute (`"2/255"`) or relative (`"0.25 eps"`). The loss is cross-entropy. A
    sample that is never misclassified costs `steps` backward and `steps + 1` forward passes per restart (the last is
    the loop's check of x_steps).
    """

    many_labels: ClassVar[bool] = True
    steps: Annotated[int, Field(ge=1, strict=True)]
    step_size: str | float
    random_start: StrictBool

    def __post_init__(self) -> None:
        require_step(self.step_size)

    def most_passes(self, classes: int) -> tuple[int, int]:
        """Return forward and backward passes per restart of a sample that is never misclassified."""
        return most_passes("pgd", vars(self), classes)

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Draw x_0.

        Raises:
            BadInputError: the norm is L1, in which one step moves one number, and clipping undoes it.

        """
        require_norm(threat, "pgd", "linf", "l2")
        x0 = uniform_in_ball(x, threat, keys) if self.random_start else x
        return {
            "x": x0,
            "clean": x,
            "y": y,
            "step": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take one projected step."""
        x, y = state["x"], state["y"]
        _, gradient = query.gradient(x, lambda logits: threat.sign * cross_entropy(logits, y))
        length = parse_step(self.step_size, threat.eps)
        moved = project(x + length * ascent_direction(gradient, threat.norm), state["clean"], threat)
        step = state["step"] + 1
        return state | {"x": moved, "step": step, "finished": step >= self.steps}


ATTACK = PGD
