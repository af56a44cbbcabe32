"""Logits of one pass over a picture are summed window by window, and are let go once no later window adds to them.

Along an axis, windows come in order. When one comes, what earlier windows reached is held as sums; with it, everything
before the start of the next one is final. Only the overlap with the windows to come is kept, and, where a pass is
resized, one row or column more, between which and the next ones pixels lie.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Part = tuple[Tensor, int, int]
"""Values (classes, rows, columns) and the place of the first: its row and column."""


@dataclass(frozen=True)
class Span:
    """One window along one axis of a pass.

    start: where the window starts.
    held: from where on logits of earlier windows are held when it comes: at most `start`.
    reached: up to where earlier windows have been: at least `start`.
    done: up to where logits are final with it: where the next one starts.
    keep: from where on they are needed afterwards.
    first: of the picture's pixels, the first that becomes final with this window.
    last: the one after the last that does.
    """

    start: int
    held: int
    reached: int
    done: int
    keep: int
    first: int
    last: int


@lru_cache(maxsize=256)
def spans(starts: tuple[int, ...], side: int, length: int, shown: int) -> tuple[Span, ...]:
    """Follow windows that start at `starts` along an axis of `length`, read at the length `shown`."""
    found = []
    held = reached = first = 0
    place = _places(length, shown)
    for start, done in zip(starts, (*starts[1:], length), strict=True):
        last = int(np.searchsorted(np.ceil(place), done))
        keep = min(done, int(place[last])) if last < shown else done
        found.append(Span(start, held, max(reached, start), done, keep, first, last))
        held, reached, first = keep, start + side, last
    return tuple(found)


@lru_cache(maxsize=256)
def _places(length: int, shown: int) -> NDArray[np.float64]:
    """Where the pixels of an axis of length `shown` lie on one of `length`: bilinear, centres at halves."""
    return np.clip((np.arange(shown) + 0.5) * length / shown - 0.5, 0, length - 1)


class Pass:
    """The logits of one pass, over a picture resized from `shown` to `size`, read at the size `shown`.

    Windows are added row by row, and in each row from left to right; their logits are never written to.

    Attributes:
        down: the rows of windows.
        across: the windows of each row.
        mirrored: whether windows are shown mirrored. Places are those in the picture, which is not.
        turned: whether rows are columns and columns rows. What is added, held and returned is transposed, and lies in
            memory as if it were not.
        plain: whether the pass has the picture's own size.
        disjoint: whether, besides, no two windows overlap.

    """

    def __init__(
        self,
        size: tuple[int, int],
        shown: tuple[int, int],
        starts: tuple[tuple[int, ...], tuple[int, ...]],
        side: int,
        *,
        mirrored: bool,
        turned: bool,
    ) -> None:
        self.mirrored, self.turned, self.size = mirrored, turned, size
        self.sides = min(side, size[0]), min(side, size[1])
        self.plain = size == shown
        self.down, self.across = (spans(*axis) for axis in zip(starts, self.sides, size, shown, strict=True))
        overlapping = [any(span.reached > span.start for span in axis) for axis in (self.down, self.across)]
        self.disjoint = self.plain and not any(overlapping)
        self._places = [_places(*lengths) for lengths in zip(size, shown, strict=True)]
        self._counts = (
            [_counts(*axis) for axis in zip(starts, self.sides, size, strict=True)] if any(overlapping) else []
        )
        self._beside = self._above = self._below = torch.empty(0, 0, 0)

    def add(self, row: int, column: int, logits: Tensor, most: int, *, means: bool) -> Iterator[Part]:
        """Add the logits (classes, rows, columns) of a window; yield what is final, at the picture's size.

        Args:
            row: the number of its row of windows.
            column: its number in there.
            logits: what the model says in it.
            most: rows of a resized pass that are returned at a time, counted from the picture's first row.
            means: whether sums over windows are turned into means where the pass is not resized.

        """
        down, across = self.down[row], self.across[column]
        bottom, right = (span.start + side for span, side in zip((down, across), self.sides, strict=True))
        inside, beyond = down.reached - down.start, across.reached - across.start
        pieces: list[Part] = [(logits[:, inside:, beyond:], down.reached, across.reached)]
        if column:
            self._beside[:, down.start - down.held :, across.start - across.held :] += logits[:, :, :beyond]
            pieces.append((self._beside, down.held, across.held))
        if row:
            above = self._above[:, :, across.reached : right]
            above[:, down.start - down.held :] += logits[:, :inside, beyond:]
            pieces.append((above, down.held, across.reached))
        if self.plain:
            for values, first, left in _cut(pieces, down.held, down.done, across.held, across.done):
                yield (self._mean(values.clone(), first, left) if means else values), first, left
        else:
            yield from self._resized(down, across, pieces, most)
        self._keep(row, column, pieces, bottom, right)

    def _keep(self, row: int, column: int, pieces: list[Part], bottom: int, right: int) -> None:
        """Hold what the windows to come add to, and what lies between pixels of theirs and of those before."""
        down, across = self.down[row], self.across[column]
        classes = len(pieces[0][0])
        if row + 1 < len(self.down):
            if column == 0:
                self._below = self._room(pieces, classes, bottom - down.keep, self.size[1])
            _gather(pieces, down.keep, across.start, self._below[:, :, across.start : across.done])
        if column + 1 < len(self.across):
            beside = self._room(pieces, classes, bottom - down.held, right - across.keep)
            _gather(pieces, down.held, across.keep, beside)
            self._beside = beside
        else:
            self._above = self._below
            self._below = self._beside = self._below.new_empty(0, 0, 0)

    def _resized(self, down: Span, across: Span, pieces: list[Part], most: int) -> Iterator[Part]:
        """Yield final logits at the picture's size (bilinear), at most `most` rows at a time."""
        patch = self._room(pieces, len(pieces[0][0]), down.done - down.held, across.done - across.held)
        _gather(pieces, down.held, across.held, patch)
        self._mean(patch, down.held, across.held)
        columns = self._places[1][across.first : across.last] - across.held
        first = down.first
        while first < down.last and len(columns):
            last = min(down.last, (first // most + 1) * most)
            yield self._sampled(patch, self._places[0][first:last] - down.held, columns), first, across.first
            first = last

    def _sampled(self, patch: Tensor, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Tensor:
        """Return the values between the pixels of `patch` at the given rows and columns."""
        patch = self._turn(patch)
        down, across = (columns, rows) if self.turned else (rows, columns)
        y, x = (
            torch.from_numpy(((2 * places + 1) / length - 1).astype(np.float32)).to(patch.device)
            for places, length in zip((down, across), patch.shape[1:], strict=True)
        )
        grid = torch.stack([x.expand(len(y), -1), y[:, None].expand(-1, len(x))], 2)
        return self._turn(F.grid_sample(patch[None], grid[None], padding_mode="border", align_corners=False)[0])

    def _mean(self, values: Tensor, first: int, left: int) -> Tensor:
        """Divide sums by how many windows they are over, in place."""
        if self._counts:
            down, across = (count.to(values.device) for count in self._counts)
            values /= down[first : first + values.shape[1], None] * across[left : left + values.shape[2]]
        return values

    def _room(self, pieces: list[Part], classes: int, rows: int, columns: int) -> Tensor:
        shape = (classes, columns, rows) if self.turned else (classes, rows, columns)
        return self._turn(pieces[0][0].new_empty(shape))

    def _turn(self, values: Tensor) -> Tensor:
        return values.mT if self.turned else values


class Bands:
    """Probabilities of several passes, summed in bands of `height` rows; only the bands that were met are held."""

    def __init__(self, shape: tuple[int, ...], *, turned: bool) -> None:
        self.rows, self.columns = shape
        self.turned = turned
        self.height = 1
        self._held: dict[int, Tensor] = {}

    def add(self, values: Tensor, first: int, left: int) -> None:
        """Add probabilities (classes, rows, columns) from the place (first, left) on."""
        last = first + values.shape[1]
        for top in range(first // self.height * self.height, last, self.height):
            if top not in self._held:
                height = min(self.height, self.rows - top)
                shape = (self.columns, height) if self.turned else (height, self.columns)
                sums = values.new_zeros(len(values), *shape)
                self._held[top] = sums.mT if self.turned else sums
            start, end = max(first, top), min(last, top + self.height)
            here = self._held[top][:, start - top : end - top, left : left + values.shape[2]]
            here += values[:, start - first : end - first]

    def before(self, row: int) -> Iterator[tuple[int, Tensor]]:
        """Let go of the bands that end at most at `row`: their first rows and their sums."""
        for top in [top for top, sums in self._held.items() if top + sums.shape[1] <= row]:
            yield top, self._held.pop(top)


@lru_cache(maxsize=256)
def _counts(starts: tuple[int, ...], side: int, length: int) -> Tensor:
    """Count the windows that see each place of an axis."""
    hits = torch.zeros(length)
    for start in starts:
        hits[start : start + side] += 1
    return hits


def _cut(pieces: list[Part], top: int, bottom: int, left: int, right: int) -> Iterator[Part]:
    """Yield what `pieces` have of a rectangle."""
    for values, y, x in pieces:
        first, last = max(top, y), min(bottom, y + values.shape[1])
        start, end = max(left, x), min(right, x + values.shape[2])
        if first < last and start < end:
            yield values[:, first - y : last - y, start - x : end - x], first, start


def _gather(pieces: list[Part], top: int, left: int, into: Tensor) -> None:
    """Copy the rectangle at (top, left) out of `pieces`."""
    for values, y, x in _cut(pieces, top, top + into.shape[1], left, left + into.shape[2]):
        into[:, y - top : y - top + values.shape[1], x - left : x - left + values.shape[2]] = values


def first_largest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class of the largest score at each place (of equal ones the first), as int16, and that score.

    `scores` has shape (classes, ...). On a CPU, going through the classes once is several times faster than `max(0)`.
    """
    if scores.device.type != "cpu":
        largest, classes = scores.max(0)
        return classes.to(torch.int16), largest
    kind = torch.uint8 if len(scores) <= 256 else torch.int16
    largest = scores[0].clone()
    classes = torch.zeros_like(largest, dtype=kind)
    new, larger = torch.empty_like(classes), torch.empty_like(largest, dtype=torch.bool)
    for number, row in enumerate(scores[1:].unbind(0), start=1):
        torch.gt(row, largest, out=larger)
        torch.maximum(largest, row, out=largest)
        torch.mul(larger.view(torch.uint8) if kind == torch.uint8 else larger.to(kind), number, out=new)
        torch.maximum(classes, new, out=classes)
    return classes.to(torch.int16), largest
