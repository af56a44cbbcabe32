"""Balls: every value may change a little, and values may have to stay in [0, 1]."""

import math

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.sets.base import PerturbationSet
from robustbench_kpca.attacks.shared.ball import distance, furthest
from robustbench_kpca.types import Attack, Images, Mask


class Ball(PerturbationSet):
    """All x' with ||x' - x||_norm <= eps and, with `clip`, values in [0, 1]."""

    def require_attack(self, name: str, attack: Attack) -> None:
        """Refuse attacks that replace words."""
        if getattr(attack, "replaces_words", False):
            raise BadInputError(
                f"attack '{name}' replaces words, but the protocol has norm = '{self.threat.norm}'",
                expected="norm = 'words'",
            )

    def check(self, x: Tensor, clean: Images, attack: str, checks: Checks, *, outside: bool = False) -> None:
        """Refuse an image that is NaN or outside the box or, without `outside`, the ball; it is never clipped."""
        if outside:
            self._check_box(x, attack, checks)
        else:
            self._check_proposal(x, clean, attack, checks)

    def is_input(self, x: Tensor) -> bool:  # noqa: ARG002
        """Return True: every point is an image."""
        return True

    def beyond(self, x: Images, clean: Images) -> Mask:
        """Tell which images are further than eps."""
        return distance(x, clean, self.threat.norm) > self.threat.eps

    def example(self) -> Images:
        """Return a grey image."""
        return torch.full((1, 3, 32, 32), 0.5)

    def _check_box(self, x: Images, attack: str, checks: Checks) -> None:
        def refuse(least: float, most: float) -> None:
            if not self._in_box(least, most):
                raise EvaluationError(
                    f"attack '{attack}' proposed {self._outside}",
                    fix="this is a bug of the attack: report it",
                )

        checks.add(torch.stack(x.aminmax()), refuse)

    def _check_proposal(self, x: Images, clean: Images, attack: str, checks: Checks) -> None:
        threat = self.threat

        def refuse(least: float, most: float, below: float, above: float) -> None:
            inside, reach = self._in_box(least, most), max(-below, above)
            if not (inside and reach <= furthest(threat.eps)):
                box = " inside [0, 1]" if threat.clip else ""
                violation = f"a distance of {reach:.6g}" if inside else self._outside
                raise EvaluationError(
                    f"attack '{attack}' proposed {violation}",
                    expected=f"{threat.norm} <= {threat.eps:.6g}{box}",
                    fix="this is a bug of the attack: report it",
                )

        linf = threat.norm == "linf"
        change = (x - clean if linf else distance(x, clean, threat.norm)).aminmax()
        numbers = [*x.aminmax(), *change] if linf else [*(bound.double() for bound in x.aminmax()), *change]
        checks.add(torch.stack(numbers), refuse)

    @property
    def _outside(self) -> str:
        return "values outside [0, 1] or NaN" if self.threat.clip else "values that are not finite"

    def _in_box(self, least: float, most: float) -> bool:
        """Tell whether values from `least` to `most` lie in the box, if any; both are NaN if any value is."""
        if not self.threat.clip:
            return math.isfinite(least) and math.isfinite(most)
        return least >= 0 and most <= 1
