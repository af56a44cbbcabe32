"""A few pixels, or a few squares of them, may have any values in [0, 1]; all others stay."""

import math

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.sets.base import PerturbationSet
from robustbench_kpca.attacks.shared.patches import beyond
from robustbench_kpca.types import Attack, Images, Mask


class Patches(PerturbationSet):
    """All x' with values in [0, 1] that differ from x in at most eps squares: pixels in L0, else patches."""

    def require_attack(self, name: str, attack: Attack) -> None:
        """Refuse attacks that do not say that they search in such a set."""
        if self.threat.norm not in getattr(attack, "norms", ()):
            fix = (
                "choose sigma_zero, sparse_rs or pgd" if self.threat.norm == "l0" else "choose patch, sparse_rs or pgd"
            )
            raise BadInputError(f"attack '{name}' with norm = '{self.threat.norm}', which it does not search", fix=fix)

    def check(self, x: Tensor, clean: Images, attack: str, checks: Checks, *, outside: bool = False) -> None:
        """Refuse values outside [0, 1] or NaN and, without `outside`, changes outside the allowed squares."""

        def refuse(least: float, most: float, wrong: float) -> None:
            if not (least >= 0 and most <= 1) or wrong:
                violation = f"changes beyond {self.threat}" if wrong else "values outside [0, 1] or NaN"
                raise EvaluationError(
                    f"attack '{attack}' proposed {violation}",
                    expected=f"{self.threat} inside [0, 1]",
                    fix="this is a bug of the attack: report it",
                )

        wrong = x.new_zeros(()) if outside else self.beyond(x, clean).sum().to(x.dtype)
        checks.add(torch.stack([*x.aminmax(), wrong]), refuse)

    def is_input(self, x: Tensor) -> bool:  # noqa: ARG002
        """Return True: every point is an image."""
        return True

    def beyond(self, x: Images, clean: Images) -> Mask:
        """Tell which images differ in more squares than are allowed."""
        return beyond(x, clean, self.threat)

    def example(self) -> Images:
        """Return a grey image in which there is room."""
        side = max(32, self.threat.side * math.isqrt(self.threat.count - 1) + self.threat.side)
        return torch.full((1, 3, side, side), 0.5)
