"""Which images a classifier got wrong, in every cell of corruptions x severities."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics.shared.error_table import Cell, ErrorTable
from robustbench_kpca.protocols.corruption_names import canonical
from robustbench_kpca.protocols.scenario import CLEAN_CELL
from robustbench_kpca.records.estimate import Estimate, proportion
from robustbench_kpca.records.outcomes import Outcomes

Names = NDArray[np.object_]


@dataclass(frozen=True)
class CorruptionGrid:
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
    def of(cls, outcomes: Outcomes, top: int = 1) -> "CorruptionGrid":
        """Return which images were wrong in which cell: their label not among the `top` largest logits.

        Raises:
            BadInputError: as `from_rows`.

        """
        right = outcomes["rank"] < top
        return cls.from_rows(outcomes["sample"], outcomes["corruption"], outcomes["severity"], right)

    @classmethod
    def from_rows(
        cls, sample: Names, corruption: Names, severity: NDArray[np.int64], correct: NDArray[np.bool_]
    ) -> "CorruptionGrid":
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
