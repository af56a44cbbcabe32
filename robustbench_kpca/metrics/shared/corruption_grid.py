"""Which images a classifier got wrong, in every cell of corruptions x severities."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics.shared.error_table import Cell, ErrorTable
from robustbench_kpca.protocols.corruption_names import canonical
from robustbench_kpca.protocols.scenario import CLEAN_CELL
from robustbench_kpca.records.coded import Coded
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
        return cls._arranged(outcomes.coded("sample"), outcomes.coded("corruption"), outcomes["severity"], right)

    @classmethod
    def from_rows(
        cls, sample: Names, corruption: Names, severity: NDArray[np.int64], correct: NDArray[np.bool_]
    ) -> "CorruptionGrid":
        """Arrange rows, each one image in one cell, in any order; cell `none` of severity 0 holds the clean images.

        Raises:
            BadInputError: a cell is missing, or does not hold each image exactly once.
        """
        return cls._arranged(Coded.of(sample), Coded.of(corruption), severity, correct)

    @classmethod
    def _arranged(
        cls, sample: Coded, corruption: Coded, severity: NDArray[np.int64], correct: NDArray[np.bool_]
    ) -> "CorruptionGrid":
        (sample, _), (corruption, _) = sample.compact(), corruption.compact()
        is_clean, given = corruption.equals(CLEAN_CELL), severity == 0
        if (is_clean != given).any() or is_clean.all():
            raise BadInputError(
                f"corruptions {', '.join(canonical(corruption.values))} at severities {np.unique(severity).tolist()}",
                expected=f"corruptions from severity 1 on, and '{CLEAN_CELL}' at severity 0 only",
            )
        with_clean = bool(is_clean.any())
        names = canonical(name for name in corruption.values if name != CLEAN_CELL)
        levels = np.unique(severity if not with_clean else severity[~is_clean])
        cells = [(name, int(level)) for name in names for level in levels] + [(CLEAN_CELL, 0)] * with_clean
        first = {name: place * len(levels) for place, name in enumerate(names)}
        starts = np.array([first.get(name, len(names) * len(levels)) for name in corruption.values])
        place = np.where(is_clean, 0, np.searchsorted(levels, severity))
        at = sample.codes.astype(np.int64) * len(cells) + starts[corruption.codes] + place
        count = np.bincount(at, minlength=len(sample.values) * len(cells)).reshape(-1, len(cells))
        _require_once(count, cells)
        wrong = np.empty(count.shape, dtype=np.bool_)
        wrong.ravel()[at] = ~correct
        grid = wrong[:, : len(names) * len(levels)].reshape(len(sample.values), len(names), len(levels))
        clean = wrong[:, -1] if with_clean else None
        return cls(sample.values, names, tuple(levels.tolist()), grid, clean)

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


def _require_once(count: NDArray[np.int64], cells: Sequence[Cell]) -> None:
    """Refuse cells that do not hold each image exactly once; `count` has shape (images, cells)."""
    odd = []
    for column, (name, severity) in enumerate(cells):
        present, repeated = int((count[:, column] > 0).sum()), int((count[:, column] > 1).sum())
        if present < len(count):
            odd.append(f"{name} at severity {severity} holds {present} of {len(count)} images")
        if repeated:
            odd.append(f"{name} at severity {severity} holds {repeated} images more than once")
    if odd:
        more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
        raise BadInputError(f"{'; '.join(odd[:5])}{more}", expected="every image once in every cell")
