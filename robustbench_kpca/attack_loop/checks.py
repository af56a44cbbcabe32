"""Refuse images outside ball and box, and gradients that are not finite.

To look at numbers on a GPU makes the program wait until they are there. So a step's checks are looked at together, at
its end: a violation that is found late refuses the result all the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.attacks.shared.rows import waits
from robustbench_kpca.errors import EvaluationError
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images

SLACK = 1e-6  # allowed rounding error in single precision: absolute for eps <= 1, relative to eps above


@dataclass
class Checks:
    """The checks of one step: numbers, and functions that raise an error if they are bad."""

    numbers: list[Tensor] = field(default_factory=list)
    refuse: list[Callable[..., None]] = field(default_factory=list)

    def add(self, numbers: Tensor, refuse: Callable[..., None]) -> None:
        """Call `refuse` with the numbers, at once on a CPU, else in `settle`."""
        if waits(numbers.device):
            self.numbers.append(numbers.double())
            self.refuse.append(refuse)
        else:
            refuse(*numbers.tolist())

    def settle(self) -> None:
        """Look at all numbers in one transfer; the first check that fails raises its error."""
        if not self.numbers:
            return
        found = iter(torch.cat(self.numbers).tolist())
        for numbers, refuse in zip(self.numbers, self.refuse, strict=True):
            refuse(*(next(found) for _ in range(len(numbers))))
        self.numbers.clear()
        self.refuse.clear()


def check_box(x: Tensor, threat: Threat, attack: str, checks: Checks | None = None) -> None:
    """Refuse an image that is NaN or outside the box; this is a bug of the attack."""

    def refuse(least: float, most: float) -> None:
        if not _inside(threat, least, most):
            raise EvaluationError(
                f"attack '{attack}' proposed values outside [0, 1] or NaN", fix="this is a bug of the attack: report it"
            )

    _look(checks, torch.stack(x.aminmax()), refuse)


def check_proposal(x: Tensor, clean: Images, threat: Threat, attack: str, checks: Checks | None = None) -> None:
    """Refuse a proposal outside the ball or the box; it is never clipped, because this is a bug of the attack."""

    def refuse(least: float, most: float, below: float, above: float) -> None:
        inside, reach = _inside(threat, least, most), max(-below, above)
        if not (inside and reach <= threat.eps + SLACK * max(1.0, threat.eps)):
            met = f"a distance of {reach:.6g}" if inside else "values outside [0, 1] or NaN"
            raise EvaluationError(
                f"attack '{attack}' proposed {met}",
                expected=f"{threat.norm} <= {threat.eps:.6g} inside [0, 1]",
                fix="this is a bug of the attack: report it",
            )

    change = (x - clean if threat.norm == "linf" else distance(x, clean, threat.norm)).aminmax()
    numbers = [*x.aminmax(), *change] if threat.norm == "linf" else [*(one.double() for one in x.aminmax()), *change]
    _look(checks, torch.stack(numbers), refuse)


def _look(checks: Checks | None, numbers: Tensor, refuse: Callable[..., None]) -> None:
    if checks is None:
        refuse(*numbers.tolist())
    else:
        checks.add(numbers, refuse)


def _inside(threat: Threat, least: float, most: float) -> bool:
    """Tell whether values from `least` to `most` lie in the box; both are NaN if any value is."""
    low, high = (0.0, 1.0) if threat.clip else (-float("inf"), float("inf"))
    return low <= least and most <= high
