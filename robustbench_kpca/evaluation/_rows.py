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

from robustbench_kpca.evaluation._sums import Part, Sums


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

    def add(self, row: int, column: int, logits: Tensor) -> Sums:
        """Add the logits (classes, rows, columns) of a window; return what windows said so far where it looks."""
        down, across = self.down[row], self.across[column]
        earlier: list[Part] = []
        if column:
            earlier.append((self._beside, down.held, across.held))
        if row:
            earlier.append((self._above[:, :, across.reached :], down.held, across.reached))
        sums = Sums(logits, down.start, across.start, earlier, turned=self.turned)
        bottom, right = sums.bottom, sums.right
        if row + 1 < len(self.down):
            rest = slice(down.keep, bottom), slice(across.start, across.done)
            if len(self.across) == 1:
                self._below = sums.read(*rest)
            else:
                if column == 0:
                    self._below = sums.room(bottom - down.keep, self.size[1])
                self._below[:, :, rest[1]] = sums.read(*rest)
        if column + 1 < len(self.across):
            self._beside = sums.read(slice(down.held, bottom), slice(across.keep, right))
        else:
            self._above, self._below = self._below, self._below.new_empty(0, 0, 0)
            self._beside = self._below
        return sums

    def final(self, row: int, column: int, sums: Sums, most: int) -> Iterator[Part]:
        """Yield the means that are final with a window, at the picture's size (bilinear).

        A pass that is resized is read at most `most` rows at a time, counted from the picture's first row.
        """
        down, across = self.down[row], self.across[column]
        if down.first == down.last or across.first == across.last:
            return
        patch = sums.gathered(slice(down.held, down.done), slice(across.held, across.done))
        if self._counts:
            hits, others = (count.to(patch.device) for count in self._counts)
            patch /= hits[down.held : down.done, None] * others[across.held : across.done]
        if self.plain:
            yield patch, down.first, across.first
            return
        columns = self._places[1][across.first : across.last] - across.held
        first = down.first
        while first < down.last:
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

    def _turn(self, values: Tensor) -> Tensor:
        return values.mT if self.turned else values


@lru_cache(maxsize=256)
def _counts(starts: tuple[int, ...], side: int, length: int) -> Tensor:
    """Count the windows that see each place of an axis."""
    hits = torch.zeros(length)
    for start in starts:
        hits[start : start + side] += 1
    return hits


@dataclass(frozen=True)
class Window:
    """One window of a picture: its pass, and its place among the windows there."""

    path: Pass
    row: int
    column: int


def schedule(passes: list[Pass]) -> list[Window]:
    """Order the windows of several passes: rows of windows by where they start, in the order of passes where equal.

    Where most rows of windows overlap by less than half, one that does by more (the last, or mirrored the second)
    follows the one before at once: that much is not to be held for long.
    """
    rows = []
    for path in passes:
        overlaps = [span.reached - span.start for span in path.down]
        usual = min(overlaps[1:], default=0)
        start = 0
        for number, (span, overlap) in enumerate(zip(path.down, overlaps, strict=True)):
            if not usual < path.sides[0] / 2 < overlap:
                start = span.start
            rows.append((start / path.size[0], number, path))
    rows.sort(key=lambda entry: entry[0])
    return [Window(path, number, column) for _, number, path in rows for column in range(len(path.across))]
