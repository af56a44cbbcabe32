"""Uniform noise: one random point of the ball, without using the model; a baseline for every attack.

The baseline attack of CleverHans: Papernot et al. (2018), "Technical Report on the CleverHans v2.1.0 Adversarial
Examples Library", arXiv:1610.00768.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import uniform_in_ball
from robustbench_kpca.protocols.threat import COUNTED, Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class Noise:
    """x' = clip(x + u) with u uniform in the ball; one draw per restart. Pixels and patches: at random places.

    A sample that is never misclassified costs 1 forward pass per restart, the loop's check of x'.
    """

    version: ClassVar[int] = 1
    many_labels: ClassVar[bool] = True
    norms: ClassVar[tuple[Norm, ...]] = ("linf", "l2", "l1", *COUNTED)
    most_passes: ClassVar[tuple[str, str]] = ("1", "0")

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:  # noqa: ARG002
        """Draw x'."""
        return {"x": uniform_in_ball(x, threat, keys), "finished": torch.zeros_like(keys, dtype=torch.bool)}

    def step(self, state: State, threat: Threat, query: Query) -> State:  # noqa: ARG002
        """Finish without a query: the loop evaluates x'."""
        return state | {"finished": torch.ones_like(state["finished"])}


ATTACK = Noise
