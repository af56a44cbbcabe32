"""Errors under corruption, absolute and relative to a reference model, each also as one score per image.

Source: Hendrycks & Dietterich (2019), "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
arXiv:1903.12261, section 4. With E a top-1 error in [0, 1], c a corruption and s a severity:

    CE_c          =  sum_s E_{s,c} / sum_s E^ref_{s,c}                                          mCE = mean_c CE_c
    relative CE_c = (mean_s E_{s,c} - E_clean) / (mean_s E^ref_{s,c} - E^ref_clean)    relative mCE = mean_c of these

All are fractions: 1.0 is as bad as the reference (for ImageNet-C AlexNet), which tables print as 100. The unnormalised
mean error, mean_{c,s} E_{s,c}, is not mCE, though it has been published under that name. Means over corruptions leave
out the four extra ones. Relative CE is unstable where the reference hardly degrades (AlexNet on brightness: by 0.13),
so it belongs beside its mean, corruption by corruption.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics.shared.alexnet import (
    ALEXNET_CLEAN,
    ALEXNET_ERRORS,
    ALEXNET_EXTRA_MEANS,
    canonical,
    counted,
    group_of,
)
from robustbench_kpca.protocols.corruption_names import SEVERITIES
from robustbench_kpca.protocols.scenario import CLEAN_CELL
from robustbench_kpca.records.estimate import Estimate, Values, proportion

Names = NDArray[np.object_]
Cell = tuple[str, int]
PerCorruption = dict[str, float]


@dataclass(frozen=True)
class ErrorTable:
    """Top-1 errors in [0, 1] of the model called `name`.

    cells: by (corruption, severity).
    clean: on the same images uncorrupted; None where not measured.
    means: over severities 1 to 5, of corruptions whose errors by severity are not known.
    """

    name: str
    cells: Mapping[Cell, float]
    clean: float | None = None
    means: Mapping[str, float] = field(default_factory=dict)

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Those with errors by severity, in the order of `GROUPS`, others after them."""
        return canonical(corruption for corruption, _ in self.cells)

    @property
    def severities(self) -> tuple[int, ...]:
        """Every severity that occurs, ascending."""
        return tuple(sorted({severity for _, severity in self.cells}))

    def knows(self, corruption: str, severities: Sequence[int]) -> bool:
        """Whether its mean error over these severities is known."""
        each = all((corruption, severity) in self.cells for severity in severities)
        return each or (corruption in self.means and tuple(sorted(severities)) == SEVERITIES)

    def mean_by_corruption(self, corruptions: Sequence[str], severities: Sequence[int]) -> PerCorruption:
        """Return each corruption's mean error over these severities.

        Raises:
            BadInputError: some are not known.

        """
        found, missing = {}, []
        for corruption in corruptions:
            unknown = [severity for severity in severities if (corruption, severity) not in self.cells]
            if not unknown:
                found[corruption] = float(np.mean([self.cells[corruption, severity] for severity in severities]))
            elif corruption in self.means and tuple(severities) == SEVERITIES:
                found[corruption] = self.means[corruption]
            else:
                missing.append(f"{corruption} at severity {', '.join(map(str, unknown))}")
        if missing:
            raise BadInputError(
                f"{self.name} has no error for {'; '.join(missing)}",
                fix="measure it there, leave these corruptions out, or choose another reference",
            )
        return found

    def required_clean(self) -> float:
        """Return the clean error.

        Raises:
            BadInputError: it was not measured.

        """
        if self.clean is None:
            raise BadInputError(
                f"{self.name} has no clean error", fix=f"measure the cell '{CLEAN_CELL}' of severity 0, too"
            )
        return self.clean


ALEXNET = ErrorTable(
    "AlexNet",
    {(name, severity): error for name, row in ALEXNET_ERRORS.items() for severity, error in enumerate(row, start=1)},
    ALEXNET_CLEAN,
    ALEXNET_EXTRA_MEANS,
)
"""The reference of ImageNet-C, for its images as stored (224 px, not resized again): for no others."""


@dataclass(frozen=True)
class Grid:
    """Which images a model got wrong, in every cell of corruptions x severities.

    samples: ids of the images, shape (n,), in order of appearance.
    corruptions: in the order of `GROUPS`, others after them.
    severities: ascending.
    wrong: shape (n, corruptions, severities).
    clean_wrong: shape (n,), of the images uncorrupted; None where not measured.
    """

    samples: Names
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    wrong: NDArray[np.bool_]
    clean_wrong: NDArray[np.bool_] | None = None

    @classmethod
    def from_rows(
        cls, sample: Names, corruption: Names, severity: NDArray[np.int64], correct: NDArray[np.bool_]
    ) -> "Grid":
        """Arrange rows, each one image in one cell, in any order; cell `none` of severity 0 holds the clean images.

        Raises:
            BadInputError: a cell is missing, or does not hold each image exactly once.

        """
        is_clean = corruption == CLEAN_CELL
        if (is_clean != (severity == 0)).any() or is_clean.all():
            raise BadInputError(
                f"corruptions {', '.join(canonical(corruption))} at severities {np.unique(severity).tolist()}",
                expected=f"corruptions from severity 1 on, and '{CLEAN_CELL}' at severity 0 only",
            )
        samples, names = tuple(dict.fromkeys(sample)), canonical(corruption[~is_clean])
        levels = tuple(int(level) for level in np.unique(severity[~is_clean]))
        cells = [(name, level) for name in names for level in levels]
        if is_clean.any():
            cells.append((CLEAN_CELL, 0))
        image = _positions(sample, samples)
        cell = _positions(zip(corruption, severity.tolist(), strict=True), cells)
        count = np.bincount(image * len(cells) + cell, minlength=len(samples) * len(cells))
        _require_once(count.reshape(len(samples), len(cells)), cells)
        wrong = np.empty((len(samples), len(cells)), dtype=np.bool_)
        wrong[image, cell] = ~correct
        grid = wrong[:, : len(names) * len(levels)].reshape(len(samples), len(names), len(levels))
        return cls(np.array(samples, dtype=object), names, levels, grid, wrong[:, -1] if is_clean.any() else None)

    def table(self, name: str) -> ErrorTable:
        """Return the errors by cell of this model, called `name`."""
        cells = {cell: float(wrong.mean()) for cell, wrong in self._columns().items()}
        return ErrorTable(name, cells, None if self.clean_wrong is None else float(self.clean_wrong.mean()))

    def top1(self) -> dict[Cell, Estimate]:
        """Top-1 accuracy by cell with its interval and n; the clean cell first where there is one."""
        clean = {} if self.clean_wrong is None else {(CLEAN_CELL, 0): self.clean_wrong}
        return {cell: proportion(int((~w).sum()), len(w)) for cell, w in (clean | self._columns()).items()}

    def _columns(self) -> dict[Cell, NDArray[np.bool_]]:
        cells = itertools.product(enumerate(self.corruptions), enumerate(self.severities))
        return {(corruption, severity): self.wrong[:, c, s] for (c, corruption), (s, severity) in cells}


def mean_errors(table: ErrorTable) -> PerCorruption:
    """Mean error over severities, by corruption."""
    return table.mean_by_corruption(table.corruptions, table.severities)


def corruption_errors(table: ErrorTable, reference: ErrorTable) -> PerCorruption:
    """CE by corruption, as a fraction of the reference's error.

    Raises:
        BadInputError: the reference has no error for a corruption, or an error of 0.

    """
    scale = _scale(table.corruptions, table.severities, reference)
    return {name: error / scale[name] for name, error in mean_errors(table).items()}


def relative_corruption_errors(table: ErrorTable, reference: ErrorTable) -> PerCorruption:
    """Relative CE by corruption: the loss of accuracy as a fraction of the reference's loss. May be negative.

    Raises:
        BadInputError: a clean error is missing, or the reference does not degrade.

    """
    scale = _scale(table.corruptions, table.severities, reference, relative=True)
    return {name: (error - table.required_clean()) / scale[name] for name, error in mean_errors(table).items()}


def mean_over_corruptions(values: Mapping[str, float]) -> float:
    """Mean over corruptions, the extra ones left out: of CEs mCE, of errors the unnormalised mean error."""
    return float(np.mean([values[name] for name in counted(values)]))


def mean_by_group(values: Mapping[str, float]) -> dict[str, float]:
    """Mean over the corruptions of each group that occurs, in the order noise, blur, weather, digital, extra, other."""
    names: dict[str, list[float]] = {}
    for name in canonical(values):
        names.setdefault(group_of(name), []).append(values[name])
    return {group: float(np.mean(members)) for group, members in names.items()}


def retention(corrupted: Values, clean: NDArray[np.bool_], weights: NDArray[np.int64] | None = None) -> float:
    """Return accuracy under corruption as a fraction of clean accuracy.

    Args:
        corrupted: accuracy of each image over its corrupted versions, `1 - mean_error_scores`, shape (n,).
        clean: whether each image uncorrupted is classified correctly, `~clean_wrong`, shape (n,).
        weights: times that each image counts, shape (n,); by default once.

    Raises:
        BadInputError: the clean accuracy is 0.

    """
    base = float(np.average(clean, weights=weights))
    if base == 0:
        raise BadInputError("a clean accuracy of 0", expected="some clean image classified correctly")
    return float(np.average(corrupted, weights=weights)) / base


def mean_error_scores(grid: Grid) -> Values:
    """One score per image, shape (n,): its share of wrong cells. Their mean is the unnormalised mean error."""
    names = counted(grid.corruptions)
    return _combine(grid, dict.fromkeys(names, 1 / len(names)))


def mce_scores(grid: Grid, reference: ErrorTable) -> Values:
    """One score per image, shape (n,), >= 0, whose mean is mCE: mCE is linear in the errors.

        score_i = 1/C sum_c [ sum_s e_{i,s,c} / sum_s E^ref_{s,c} ],   e = 1 where image i is wrong

    Raises:
        BadInputError: as `corruption_errors`.

    """
    scale = _scale(counted(grid.corruptions), grid.severities, reference)
    return _combine(grid, {name: 1 / (len(scale) * divisor) for name, divisor in scale.items()})


def relative_mce_scores(grid: Grid, reference: ErrorTable) -> Values:
    """One score per image, shape (n,), of either sign, whose mean is relative mCE. Raises as its CEs do."""
    grid.table("the model").required_clean()
    assert grid.clean_wrong is not None
    scale = _scale(counted(grid.corruptions), grid.severities, reference, relative=True)
    shares = {name: 1 / (len(scale) * divisor) for name, divisor in scale.items()}
    return _combine(grid, shares) - sum(shares.values()) * grid.clean_wrong


def _combine(grid: Grid, shares: Mapping[str, float]) -> Values:
    """Weigh each image's error over severities, by corruption."""
    row = np.array([shares.get(name, 0.0) for name in grid.corruptions])
    return np.asarray(grid.wrong.mean(axis=2) @ row)


def _scale(
    corruptions: Sequence[str], severities: Sequence[int], reference: ErrorTable, relative: bool = False
) -> PerCorruption:
    """Return what (relative) CE divides by. An error is of an image at least, so what is smaller is rounding."""
    base = reference.required_clean() if relative else 0.0
    scale = {name: mean - base for name, mean in reference.mean_by_corruption(corruptions, severities).items()}
    odd = [name for name, value in scale.items() if value < 1e-9]
    if odd:
        what = "is no worse than on clean images" if relative else "makes no error"
        raise BadInputError(f"{reference.name} {what} under {', '.join(odd)}", fix="choose another reference")
    return scale


def _positions(values: Iterable[object], known: Sequence[object]) -> NDArray[np.int64]:
    place = {value: index for index, value in enumerate(known)}
    return np.fromiter((place[value] for value in values), dtype=np.int64)


def _require_once(count: NDArray[np.int64], cells: Sequence[Cell]) -> None:
    """Refuse cells that do not hold each image exactly once; `count` has shape (images, cells)."""
    odd = []
    for column, (name, severity) in enumerate(cells):
        held, repeated = int((count[:, column] > 0).sum()), int((count[:, column] > 1).sum())
        if held < len(count):
            odd.append(f"{name} at severity {severity} holds {held} of {len(count)} images")
        if repeated:
            odd.append(f"{name} at severity {severity} holds {repeated} images more than once")
    if odd:
        more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
        raise BadInputError(f"{'; '.join(odd[:5])}{more}", expected="every image once in every cell")
