"""Sum the logits of one pass window by window; sums leave memory as soon as no later window adds to them.

Along an axis, windows are processed in order. After a window, everything before the start of the next window is final.
Only the overlap with later windows is kept. If the pass is resized, one more row or column is kept, because the pixels
of the image that lie between it and the next row or column are interpolated from both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._engine.inference.sliding_window._accumulate import Part, WindowSums


@dataclass(frozen=True)
class Span:
    """One window along one axis of a pass.

    start: where the window starts.
    held: where the logits that are still kept from earlier windows start; at most `start`.
    reached: where the earlier windows end; at least `start`.
    done: logits before this place are final after this window; the next window starts here.
    keep: logits from this place on are needed after this window.
    first: the first pixel of the image that becomes final with this window.
    last: one past the last pixel that becomes final with this window.
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
    """Return the spans of windows that start at `starts`: an axis of `length` in the pass, `shown` in the image."""
    found = []
    held = reached = first = 0
    place = _places(length, shown)
    for start, done in zip(starts, (*starts[1:], length), strict=True):
        last = int(np.searchsorted(np.ceil(place), done))
        keep = min(done, int(place[last])) if last < shown else done
        found.append(Span(start, held, max(reached, start), done, keep=keep, first=first, last=last))
        held, reached, first = keep, start + side, last
    return tuple(found)


@lru_cache(maxsize=256)
def _places(length: int, shown: int) -> NDArray[np.float64]:
    """Map the pixel centres of an axis of length `shown` to an axis of `length` (bilinear, centres at halves)."""
    return np.clip((np.arange(shown) + 0.5) * length / shown - 0.5, 0, length - 1)


class Pass:
    """The logits of one pass: the image is resized from `shown` to `size`, the logits back from `size` to `shown`.

    Windows are added row by row, and in each row from left to right; their logits are never modified.

    Attributes:
        down: the rows of windows.
        across: the windows of each row.
        mirrored: whether the model sees mirrored windows. Coordinates are those of the image that is not mirrored.
        turned: whether rows and columns are exchanged. All rectangles are then transposed, but keep the memory layout
            of the image.
        alone: whether it is the only pass, so that there is enough memory to keep logits without copying.
        plain: whether the pass has the size of the image.
        disjoint: whether, in addition, no two windows overlap.
    """

    def __init__(
        self,
        size: tuple[int, int],
        shown: tuple[int, int],
        starts: tuple[tuple[int, ...], tuple[int, ...]],
        side: int,
        *,
        mirrored: bool = False,
        turned: bool = False,
        alone: bool = False,
    ) -> None:
        self.mirrored, self.turned, self.alone, self.size = mirrored, turned, alone, size
        self.sides = min(side, size[0]), min(side, size[1])
        self.plain = size == shown
        self.down, self.across = (spans(*axis) for axis in zip(starts, self.sides, size, shown, strict=True))
        overlapping = [any(span.reached > span.start for span in axis) for axis in (self.down, self.across)]
        self.disjoint = self.plain and not any(overlapping)
        self._places = [_places(*lengths) for lengths in zip(size, shown, strict=True)]
        self._counts = (
            [_counts(*axis) for axis in zip(starts, self.sides, size, strict=True)] if any(overlapping) else []
        )
        self._beside: list[Part] = []
        self._above: list[Part] = []
        self._below: list[Part] = []

    def add(self, row: int, column: int, logits: Tensor) -> WindowSums:
        """Add the logits (classes, rows, columns) of a window; return the sums so far in the area of the window."""
        down, across = self.down[row], self.across[column]
        if column == 0:
            self._above, self._below = self._below, []
        earlier = [
            (values[:, :, max(across.reached - left, 0) :], top, max(across.reached, left))
            for values, top, left in self._above
        ]
        sums = WindowSums(logits, down.start, across.start, [*self._beside, *earlier], turned=self.turned)
        self._above = [part for part in self._above if part[2] + part[0].shape[2] > sums.right]
        self._beside = []
        if row + 1 < len(self.down):
            below = sums.read(slice(down.keep, sums.bottom), slice(across.start, across.done), view=self.alone)
            self._below.append((below, down.keep, across.start))
        if column + 1 < len(self.across):
            beside = sums.read(slice(down.held, sums.bottom), slice(across.keep, sums.right), view=self.alone)
            self._beside = [(beside, down.held, across.keep)]
        return sums

    def final(self, row: int, column: int, sums: WindowSums, side: int) -> Iterator[Part]:
        """Yield the mean logits that are final after a window, at the size of the image (bilinear).

        The image is divided into squares of the given side; each part lies in one square.
        """
        down, across = self.down[row], self.across[column]
        read = self._means if self.plain else self._resized
        for rows in _squares(down.first, down.last, side):
            for columns in _squares(across.first, across.last, side):
                yield read(sums, rows, columns), rows.start, columns.start

    def _means(self, sums: WindowSums, rows: slice, columns: slice) -> Tensor:
        """Return the mean logits over windows in a rectangle of the pass."""
        found = sums.gathered(rows, columns)
        if self._counts:
            down, across = (count.to(found.device) for count in self._counts)
            found /= down[rows, None] * across[columns]
        return found

    def _resized(self, sums: WindowSums, rows: slice, columns: slice) -> Tensor:
        """Return the mean logits in a rectangle of the image, interpolated from the surrounding logits of the pass."""
        places = self._places[0][rows], self._places[1][columns]
        around = [slice(int(place[0]), int(np.ceil(place[-1])) + 1) for place in places]
        patch = self._turn(self._means(sums, *around))
        down, right = (place - there.start for place, there in zip(places, around, strict=True))
        y, x = (
            torch.from_numpy(((2 * place + 1) / length - 1).astype(np.float32)).to(patch.device)
            for place, length in zip((right, down) if self.turned else (down, right), patch.shape[1:], strict=True)
        )
        grid = torch.stack([x.expand(len(y), -1), y[:, None].expand(-1, len(x))], 2)
        return self._turn(F.grid_sample(patch[None], grid[None], padding_mode="border", align_corners=False)[0])

    def _turn(self, values: Tensor) -> Tensor:
        return values.mT if self.turned else values


@lru_cache(maxsize=256)
def _counts(starts: tuple[int, ...], side: int, length: int) -> Tensor:
    """Count the windows that contain each place of an axis."""
    counts = torch.zeros(length)
    for start in starts:
        counts[start : start + side] += 1
    return counts


def _squares(first: int, last: int, side: int) -> list[slice]:
    """Divide the range first ... last - 1 at multiples of `side`."""
    tops = range(first // side * side, last, side) if first < last else ()
    return [slice(max(first, top), min(last, top + side)) for top in tops]


@dataclass(frozen=True)
class Window:
    """One window of an image: its pass, and its row and column among the windows of the pass."""

    path: Pass
    row: int
    column: int


def schedule(passes: list[Pass]) -> list[Window]:
    """Order the windows of several passes by the relative start of their row; ties: larger images first.

    If most rows of windows overlap by less than half, a row that overlaps by more (the last one or, mirrored, the
    second) directly follows the row before it, so that the large overlap is kept in memory only briefly. Windows of the
    smallest images come last because they open most bands.
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
    rows.sort(key=lambda entry: (entry[0], -entry[2].size[0]))
    return [Window(path, number, column) for _, number, path in rows for column in range(len(path.across))]
