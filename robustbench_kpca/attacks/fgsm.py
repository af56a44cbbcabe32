"""Fast gradient (sign) method: one step of size eps in the direction of steepest ascent of the cross-entropy.

Goodfellow, Shlens & Szegedy (2015), "Explaining and Harnessing Adversarial Examples", arXiv:1412.6572.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import ascent_direction, project, require_norm
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.protocols.passes import most_passes
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class FGSM:
    """x' = Proj(x + eps * sign(grad_x CE(f(x), y))); in L2 the gradient is normalised instead of signed.

    Costs one backward and two forward passes, one of them the loop's check of x'.
    """

    many_labels: ClassVar[bool] = True

    def most_passes(self, classes: int) -> tuple[int, int]:
        """Return forward and backward passes per restart of a sample that is never misclassified."""
        return most_passes("fgsm", vars(self), classes)

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at the clean image; FGSM is deterministic.

        Raises:
            BadInputError: the norm is L1, in which the only step would move one number.

        """
        require_norm(threat, "fgsm", "linf", "l2")
        return {"x": x, "y": y, "finished": torch.zeros_like(keys, dtype=torch.bool)}

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Take the only step."""
        x, y = state["x"], state["y"]
        _, gradient = query.gradient(x, lambda logits: threat.sign * cross_entropy(logits, y))
        moved = project(x + threat.eps * ascent_direction(gradient, threat.norm), x, threat)
        return state | {"x": moved, "finished": torch.ones_like(state["finished"])}


ATTACK = FGSM
