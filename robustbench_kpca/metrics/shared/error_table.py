"""Errors of a model by corruption and severity, and their means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.protocols.corruption_names import SEVERITIES, canonical
from robustbench_kpca.protocols.scenario import CLEAN_CELL

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
        """Return each corruption's mean error over these severities."""
        means, missing = {}, []
        for corruption in corruptions:
            unknown = [severity for severity in severities if (corruption, severity) not in self.cells]
            if not unknown:
                means[corruption] = float(np.mean([self.cells[corruption, severity] for severity in severities]))
            elif corruption in self.means and tuple(severities) == SEVERITIES:
                means[corruption] = self.means[corruption]
            else:
                missing.append(f"{corruption} at severity {', '.join(map(str, unknown))}")
        if missing:
            raise BadInputError(
                f"{self.name} has no error for {'; '.join(missing)}",
                fix="measure it there, leave these corruptions out, or choose another reference",
            )
        return means

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
