"""What windows say of the same pixels is added up in little memory, and the class of the largest score is found.

A rectangle is a tensor (classes, rows, columns). One that is `turned` is transposed: its rows are a picture's columns,
and it lies in memory as the picture does.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

Part = tuple[Tensor, int, int]
"""A rectangle, and the row and the column of its first place."""


class Sums:
    """What the windows so far say together where one of them looks: its logits, and parts of earlier sums.

    Iterating over it gives the sums in the window itself class by class, each to be used before the next.
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
        """Return a rectangle, copied; with `view` not where it is most of the window's own logits and nothing else."""
        found = self._cut(rows, columns)
        shape = rows.stop - rows.start, columns.stop - columns.start
        if view and len(found) == 1 and found[0][0].shape[1:] == shape and 2 * shape[0] * shape[1] > self.area:
            return found[0][0]
        return self.gathered(rows, columns)

    def gathered(self, rows: slice, columns: slice) -> Tensor:
        """Return a rectangle, copied."""
        found = _room(self.logits, rows.stop - rows.start, columns.stop - columns.start, turned=self.turned).zero_()
        for values, y, x in self._cut(rows, columns):
            here = found[:, y - rows.start :, x - columns.start :]
            here[:, : values.shape[1], : values.shape[2]] += values
        return found

    def _cut(self, rows: slice, columns: slice) -> list[Part]:
        """Return what each piece has of a rectangle, the window's own part last."""
        found = []
        for values, y, x in self._pieces:
            first, last = max(rows.start, y), min(rows.stop, y + values.shape[1])
            start, end = max(columns.start, x), min(columns.stop, x + values.shape[2])
            if first < last and start < end:
                found.append((values[:, first - y : last - y, start - x : end - x], first, start))
        return found


def _room(like: Tensor, rows: int, columns: int, *, turned: bool) -> Tensor:
    """Return memory for (classes, rows, columns), uncleared."""
    if turned:
        return like.new_empty(len(like), columns, rows).mT
    return like.new_empty(len(like), rows, columns)


class Bands:
    """Probabilities of several passes, summed in bands of `height` rows; only the bands that were met are held.

    A band is one large block of memory, which goes back to the system when it is let go; before it is met from left to
    right, its pages are not taken.
    """

    def __init__(self, shape: tuple[int, ...], *, turned: bool) -> None:
        self.rows, self.columns = shape
        self.turned = turned
        self.height = 1
        self._held: dict[int, tuple[Tensor, int]] = {}

    def add(self, values: Tensor, first: int, left: int) -> None:
        """Add probabilities (classes, rows, columns) from the place (first, left) on: a part of one band."""
        top, right = first // self.height * self.height, left + values.shape[2]
        if top not in self._held:
            self._held[top] = _room(values, min(self.height, self.rows - top), self.columns, turned=self.turned), 0
        sums, met = self._held[top]
        if right > met:
            sums[:, :, met:right] = 0
            self._held[top] = sums, right
        sums[:, first - top : first - top + values.shape[1], left:right] += values

    def before(self, row: int) -> Iterator[tuple[Tensor, int]]:
        """Let go of the bands that end at most at `row`: their sums and their first rows."""
        for top in [top for top, (sums, _) in self._held.items() if top + sums.shape[1] <= row]:
            yield self._held.pop(top)[0], top


def first_largest(scores: Tensor | Sums) -> tuple[Tensor, Tensor]:
    """Return the class of the largest score at each place (of equal ones the first), as int16, and that score.

    `scores` has shape (classes, ...). On a CPU, going through the classes once is several times faster than `max(0)`.
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
