"""Pixel counts of every image, cell and class: what pixel accuracy, mean accuracy and mIoU are computed from.

With i, t and p the pixels of class c that are predicted as c, that are c, and that are predicted as c, each summed over
all images first (Everingham et al. 2010, "The PASCAL Visual Object Classes Challenge"; Long, Shelhamer & Darrell 2015,
arXiv:1411.4038, section 5):

    pixel accuracy = sum_c i_c / sum_c t_c    mean accuracy = mean_c i_c / t_c    mIoU = mean_c i_c / (t_c + p_c - i_c)

Means are over the classes for which the ratio exists, as in the evaluations of Segmenter and mmsegmentation. These are
the classes with pixels and, for mIoU, also the classes that are only predicted: they count 0. Pixels of no known class
are left out. An mIoU is not a mean over images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.protocols.scenario import CLEAN_CELL
from robustbench_kpca.records.estimate import Values
from robustbench_kpca.records.outcomes import Outcomes

Cell = tuple[str, int]
Sums = NDArray[Any]
"""Numbers of pixels, whole or weighted."""
COLUMNS = ("intersection", "truth", "predicted")
"""Columns of outcomes that hold pixel counts."""
PICTURE = "picture"
"""Name in place of a corruption where cells are what stages of an attack found."""
Measure = Callable[[Sums, Sums, Sums], Values]
"""Maps intersection, truth and predicted, each of shape (..., classes), to values of shape (...)."""


def pixel_accuracy(intersection: Sums, truth: Sums, predicted: Sums) -> Values:  # noqa: ARG001
    """Share of the pixels that are predicted right."""
    return np.asarray(intersection.sum(-1) / truth.sum(-1))


def mean_accuracy(intersection: Sums, truth: Sums, predicted: Sums) -> Values:  # noqa: ARG001
    """Mean over classes of the share of their pixels that are predicted right."""
    return _mean(intersection, truth)


def miou(intersection: Sums, truth: Sums, predicted: Sums) -> Values:
    """Mean over classes of intersection over union; a class that is only predicted counts 0.

    Args:
        intersection: pixels of each class that are predicted as it, summed over images, shape (..., classes).
        truth: pixels of each class.
        predicted: pixels predicted as each class.

    Returns:
        In [0, 1], shape (...); NaN where there is no pixel.
    """
    return _mean(intersection, truth + predicted - intersection)


def fewest_right(pictures: "PixelCounts") -> NDArray[np.int64]:
    """Choose of each image the picture with the fewest right pixels, the first of equal ones."""
    return np.asarray(pictures.counts[:, 0].sum(2).argmin(0))


def worst_for_miou(pictures: "PixelCounts") -> NDArray[np.int64]:
    """Choose of each image the picture that makes mIoU low; return their numbers (Croce et al. 2024, arXiv:2306.12941).

    From the pictures of fewest right pixels on, one image after the other takes the picture that lowers the mIoU of all
    the most, until none lowers it: a low mIoU, though there may be a lower one.
    """
    counts = pictures.counts.astype(np.float64)  # (pictures, 3, images, classes)
    images = range(counts.shape[2])
    chosen = fewest_right(pictures)
    total = counts[chosen, :, np.arange(len(images))].sum(0)
    settled = False
    while not settled:
        settled = True
        for image in images:
            rest = total - counts[chosen[image], :, image]
            levels = miou(*np.moveaxis(rest + counts[:, :, image], 1, 0))
            best = int(levels.argmin())
            if levels[best] < levels[chosen[image]]:
                chosen[image], settled = best, False
                total = rest + counts[best, :, image]
    return chosen


def ious(intersection: Sums, truth: Sums, predicted: Sums) -> Values:
    """Intersection over union of each class, shape (..., classes); NaN for those neither true nor predicted."""
    with np.errstate(invalid="ignore"):
        return np.asarray(intersection / (truth + predicted - intersection))


def _mean(part: Sums, whole: Sums) -> Values:
    """Mean of part / whole over the classes with a whole; the others add nothing, and are not counted."""
    present = whole > 0
    ratio = np.divide(part, whole, out=np.zeros(part.shape), where=present)
    return np.asarray(ratio.sum(-1) / present.sum(-1))


@dataclass(frozen=True)
class PixelCounts:
    """Pixel counts by cell, image and class.

    samples: ids of the images, shape (n,), in order of appearance.
    cells: (corruption, severity), in order of appearance.
    counts: intersection, truth and predicted, shape (cells, 3, n, classes).
    """

    samples: NDArray[np.object_]
    cells: tuple[Cell, ...]
    counts: NDArray[np.int32]

    @classmethod
    def clean(cls, outcomes: Outcomes) -> "PixelCounts":
        """Return the counts of the images as they are."""
        if outcomes.kind == "attack":
            return cls.pictures(outcomes).part([(PICTURE, 0)])
        return cls.of(outcomes.where(outcomes["severity"] == 0))

    @classmethod
    def attacked(cls, outcomes: Outcomes) -> "PixelCounts":
        """Return the counts of the image with the fewest right pixels that an attack found of each."""
        pictures = cls.pictures(outcomes)
        return pictures.choose(fewest_right(pictures))

    @classmethod
    def pictures(cls, outcomes: Outcomes) -> "PixelCounts":
        """Return the counts of what each stage of an attack found, as cells (PICTURE, stage), 0 being the clean images.

        A stage that found nothing worse counts as the clean image.
        """
        rows = outcomes.where(outcomes["class"] >= 0)
        cells = [(PICTURE, number) for number in rows["picture"].tolist()]
        columns = [rows[name] for name in COLUMNS]
        stages = cls._gather(rows["sample"], cells, rows["class"], columns, gaps=True)
        first = stages.counts[stages.cells.index((PICTURE, 0))]
        nonempty = stages.counts.any(axis=(1, 3), keepdims=True)
        order = sorted(stages.cells, key=lambda cell: cell[1])
        return cls(stages.samples, stages.cells, np.where(nonempty, stages.counts, first)).part(order)

    def choose(self, cells: NDArray[np.int64]) -> "PixelCounts":
        """Return one cell: of each image the counts in the cell of that number."""
        chosen = self.counts[cells, :, np.arange(len(self.samples))].swapaxes(0, 1)
        return PixelCounts(self.samples, ((CLEAN_CELL, 0),), np.ascontiguousarray(chosen[None]))

    @classmethod
    def of(cls, outcomes: Outcomes) -> "PixelCounts":
        """Return the counts of every cell.

        Raises:
            BadInputError: an image is missing from a cell, or has a class twice in it.
        """
        cells = list(zip(outcomes["corruption"].tolist(), outcomes["severity"].tolist(), strict=True))
        columns = [outcomes[name] for name in COLUMNS]
        return cls._gather(outcomes["sample"], cells, outcomes["class"], columns)

    @classmethod
    def _gather(
        cls,
        sample: NDArray[np.object_],
        cell: Sequence[Cell],
        label: NDArray[np.int64],
        columns: list[NDArray[Any]],
        *,
        gaps: bool = False,
    ) -> "PixelCounts":
        samples, cells = tuple(dict.fromkeys(sample)), tuple(dict.fromkeys(cell))
        if not samples:
            raise BadInputError("outcomes without a pixel", expected="images with masks")
        shape = (len(cells), len(samples), int(label.max()) + 1)
        places = np.ravel_multi_index((_positions(cell, cells), _positions(sample, samples), label), shape)
        counts = np.zeros((3, *shape), np.int32)
        for part, column in zip(counts, columns, strict=True):
            part.ravel()[places] = column
        full = counts[1].any(axis=2) | counts[2].any(axis=2)
        repeated = len(places) - len(np.unique(places))
        if repeated or not (gaps or full.all()):
            raise BadInputError(
                f"{int((~full).sum())} images are missing from a cell, {repeated} rows repeat",
                expected="every image in every cell, and each of its classes once",
            )
        return cls(np.array(samples, dtype=object), cells, np.ascontiguousarray(counts.swapaxes(0, 1)))

    def part(self, cells: Sequence[Cell]) -> "PixelCounts":
        """Keep some cells."""
        return PixelCounts(self.samples, tuple(cells), self.counts[[self.cells.index(cell) for cell in cells]])

    def levels(self, measure: Measure, weights: NDArray[np.int64] | None = None) -> Values:
        """Return a measure of every cell, where each image counts as often as its weight says.

        Args:
            measure: of sums over images.
            weights: shape (resamples, n); by default each image counts once.

        Returns:
            Shape (resamples, cells), or (cells,) without weights.
        """
        if weights is None:
            return measure(*self._once)
        times = weights.astype(np.float64)
        levels = [measure(*(times @ part.astype(np.float64) for part in cell)) for cell in self.counts]
        return np.stack(levels, axis=1)

    def ious(self) -> Values:
        """Return intersection over union by cell and class; NaN for classes that are neither true nor predicted."""
        return ious(*self._once)

    @cached_property
    def _once(self) -> tuple[Sums, Sums, Sums]:
        intersection, truth, predicted = self.counts.sum(axis=2, dtype=np.int64).swapaxes(0, 1).astype(np.float64)
        return intersection, truth, predicted


def shares(cells: tuple[Cell, ...]) -> Values:
    """Return how much each cell counts in a mean over severities and then corruptions; clean cells count nothing."""
    severities = {name: sum(other == name for other, _ in cells) for name, _ in cells if name != CLEAN_CELL}
    weigh = {name: 1 / (len(severities) * number) for name, number in severities.items()}
    return np.array([weigh.get(name, 0.0) for name, _ in cells])


def _positions(values: Sequence[Any] | NDArray[Any], names: Sequence[object]) -> NDArray[np.int64]:
    place = {value: index for index, value in enumerate(names)}
    return np.fromiter((place[value] for value in values), dtype=np.int64, count=len(values))
