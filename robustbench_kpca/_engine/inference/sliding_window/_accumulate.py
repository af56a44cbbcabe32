"""Add up the logits of overlapping windows in little memory, and find the class of the largest score per pixel.

A rectangle is a tensor (classes, rows, columns). A `turned` rectangle is transposed: its rows are the columns of the
image, but its memory layout is that of the image.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

Part = tuple[Tensor, int, int]
"""A rectangle, and the row and the column of its upper left corner."""


class WindowSums:
    """Sums of logits in the area of one window: its own logits plus the parts of earlier sums that overlap it.

    Iteration yields the sums in the window class by class, in a buffer that the next class overwrites.
    """

    def __init__(self, logits: Tensor, top: int, left: int, earlier: list[Part], *, turned: bool) -> None:
        self.logits, self.top, self.left, self.turned = logits, top, left, turned
        self.bottom, self.right = top + logits.shape[1], left + logits.shape[2]
        self.area = logits[0].numel()
        self._pieces: list[Part] = [*earlier, (logits, top, left)]

    def __len__(self) -> int:
        return len(self.logits)

    def __iter__(self) -> Iterator[Tensor]:
        *earlier, (logits, _, _) = self._cut(slice(self.top, self.bottom), slice(self.left, self.right))
        if not earlier:
            yield from logits
            return
        plane = torch.empty_like(logits[0])
        parts = [
            (values, plane[y - self.top :, x - self.left :][: values.shape[1], : values.shape[2]])
            for values, y, x in earlier
        ]
        for number, own in enumerate(logits):
            plane.copy_(own)
            for values, here in parts:
                here += values[number]
            yield plane

    def read(self, rows: slice, columns: slice, *, view: bool) -> Tensor:
        """Return the sums in a rectangle, copied.

        With `view`, a rectangle without overlap that is more than half of the window is returned without a copy.
        """
        found = self._cut(rows, columns)
        shape = rows.stop - rows.start, columns.stop - columns.start
        if view and len(found) == 1 and found[0][0].shape[1:] == shape and 2 * shape[0] * shape[1] > self.area:
            return found[0][0]
        return self.gathered(rows, columns)

    def gathered(self, rows: slice, columns: slice) -> Tensor:
        """Return the sums in a rectangle, copied."""
        found = _allocate(self.logits, rows.stop - rows.start, columns.stop - columns.start, turned=self.turned).zero_()
        for values, y, x in self._cut(rows, columns):
            here = found[:, y - rows.start :, x - columns.start :]
            here[:, : values.shape[1], : values.shape[2]] += values
        return found

    def _cut(self, rows: slice, columns: slice) -> list[Part]:
        """Return the part of each piece that lies in a rectangle; the window's own logits come last."""
        found = []
        for values, y, x in self._pieces:
            first, last = max(rows.start, y), min(rows.stop, y + values.shape[1])
            start, end = max(columns.start, x), min(columns.stop, x + values.shape[2])
            if first < last and start < end:
                found.append((values[:, first - y : last - y, start - x : end - x], first, start))
        return found


def _allocate(like: Tensor, rows: int, columns: int, *, turned: bool) -> Tensor:
    """Return an uninitialised tensor (classes, rows, columns)."""
    if turned:
        return like.new_empty(len(like), columns, rows).mT
    return like.new_empty(len(like), rows, columns)


class Bands:
    """Sums the probabilities of several passes in bands of `height` rows; only bands with values are in memory.

    A band is one large allocation that returns to the system when the band is complete. It is zeroed from left to
    right when values arrive, so its memory pages are not used before.
    """

    def __init__(self, shape: tuple[int, ...], *, turned: bool) -> None:
        self.rows, self.columns = shape
        self.turned = turned
        self.height = 1
        self._held: dict[int, tuple[Tensor, int]] = {}

    def add(self, values: Tensor, first: int, left: int) -> None:
        """Add probabilities (classes, rows, columns) at row `first` and column `left`; they must lie in one band."""
        top, right = first // self.height * self.height, left + values.shape[2]
        if top not in self._held:
            self._held[top] = _allocate(values, min(self.height, self.rows - top), self.columns, turned=self.turned), 0
        sums, zeroed = self._held[top]
        if right > zeroed:
            sums[:, :, zeroed:right] = 0
            self._held[top] = sums, right
        sums[:, first - top : first - top + values.shape[1], left:right] += values

    def before(self, row: int) -> Iterator[tuple[Tensor, int]]:
        """Remove the bands that end at or before `row`; yield their sums and their first rows."""
        for top in [top for top, (sums, _) in self._held.items() if top + sums.shape[1] <= row]:
            yield self._held.pop(top)[0], top


def first_largest(scores: Tensor | WindowSums) -> tuple[Tensor, Tensor]:
    """Return, per place, the class of the largest score as int16, and that score; ties go to the lowest class.

    `scores` has shape (classes, ...). On a CPU, this loop over the classes is several times faster than `max(0)`.
    """
    if isinstance(scores, Tensor) and scores.device.type != "cpu":
        largest, classes = scores.max(0)
        return classes.to(torch.int16), largest
    kind = torch.uint8 if len(scores) <= 256 else torch.int16
    planes = iter(scores)
    largest = next(planes).clone()
    classes = torch.zeros_like(largest, dtype=kind)
    new, larger = torch.empty_like(classes), torch.empty_like(largest, dtype=torch.bool)
    for number, row in enumerate(planes, start=1):
        torch.gt(row, largest, out=larger)
        torch.maximum(largest, row, out=largest)
        torch.mul(larger.view(torch.uint8) if kind == torch.uint8 else larger.to(kind), number, out=new)
        torch.maximum(classes, new, out=classes)
    return classes.to(torch.int16), largest
