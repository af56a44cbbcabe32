"""Show a model fewer rows than a full batch, once that was seen to give the same bits."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BenchmarkError

Answer = TypeVar("Answer", bound=tuple[Tensor, ...])
FEWEST = 8
"""The fewest rows that are shown: below, kernels of single rows begin, which seldom sum in the order of the others."""

ENOUGH = 32
"""Fewer numbers than these can be equal by chance, so nothing is learnt from them, such as from two logits."""

PATIENCE = 8
"""Logits wait so many times longer: there are some in every evaluation, and thousands where they can be compared."""


def rows_for(count: int) -> int:
    """Return the number of rows in which `count` of them are shown: 8, 16, 24, then 4 sizes to each power of two."""
    step = max(FEWEST, 1 << max((count - 1).bit_length() - 3, 0))
    return -(-count // step) * step


@dataclass
class FewerRows:
    """Learns, for one model, which numbers of rows give the bits of a full batch; any other number is filled up to it.

    To learn it, rows are shown both ways, and everything that is answered is compared: logits, or losses, gradients and
    logits. Because a comparison costs a pass, it waits until as many rows were empty: few passes pay for none.

    Attributes:
        compared: for gradients or not, the size of a full batch and the number of rows: how many of them, not counting
            those filled up, were equal in both; 0 where they differed, or where the model failed.
        unpaid: rows that were empty, or were spared, since the last comparison.
    """

    compared: dict[tuple[bool, int, int], int] = field(default_factory=dict)
    unpaid: Counter[bool] = field(default_factory=Counter)

    def known(self, count: int, full: int, *, gradient: bool) -> int | None:
        """Return how many rows to show for `count` of them; None where that was not compared yet."""
        rows = rows_for(count)
        equal = self.compared.get((gradient, full, rows))
        if rows >= full or equal == 0:
            return full
        return rows if equal is not None and count <= equal else None

    def answer(self, count: int, full: int, work: Callable[[int], Answer]) -> Answer:
        """Return what `work(full)` returns, from fewer rows where these are known to answer the same."""
        gradient, rows = torch.is_grad_enabled(), rows_for(count)
        known = self.known(count, full, gradient=gradient)
        answer = work(full if known is None else known)
        if known is None and self.unpaid[gradient] >= (rows if gradient else PATIENCE * rows):
            self.unpaid[gradient] -= rows
            self.agrees(count, full, answer, work)
        self.unpaid[gradient] += max(full - rows, 0)
        return answer

    def agrees(self, count: int, full: int, answer: Answer, work: Callable[[int], Answer]) -> bool:
        """Learn whether fewer rows than a full batch, if `count` needs fewer, give its answer to the bit."""
        rows = rows_for(count)
        equal = rows < full and _equal(answer, lambda: work(rows))
        if not equal or sum(part.numel() for part in answer) >= ENOUGH:
            self.compared[torch.is_grad_enabled(), full, rows] = count if equal else 0
        return equal


def _equal(answer: tuple[Tensor, ...], work: Callable[[], tuple[Tensor, ...]]) -> bool:
    try:
        return all(map(torch.equal, answer, work()))
    except (BenchmarkError, RuntimeError, MemoryError):  # of a model whose batches have one size
        return False
