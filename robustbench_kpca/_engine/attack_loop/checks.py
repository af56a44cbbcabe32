"""Look at the numbers of a step together, at its end.

To look at numbers on a GPU makes the program wait until they are there. A violation that is found late refuses the
result all the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from robustbench_kpca.attacks.shared.rows import waits
from robustbench_kpca.types import Mask


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

    def settle(self, flags: Mask | None = None) -> list[bool]:
        """Look at all numbers, and at some flags, in one transfer; the first check that fails raises its error."""
        if not self.numbers:
            return [] if flags is None else [bool(flag) for flag in flags.tolist()]
        appended_flags = [] if flags is None else [flags.double()]
        transferred = iter(torch.cat([*self.numbers, *appended_flags]).tolist())
        for numbers, refuse in zip(self.numbers, self.refuse, strict=True):
            refuse(*(next(transferred) for _ in range(len(numbers))))
        self.numbers.clear()
        self.refuse.clear()
        return [flag != 0 for flag in transferred]
