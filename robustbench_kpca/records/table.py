"""The columns of a table of outcomes, and their types. Nothing here needs numpy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ColumnType = Literal["str", "int", "float"]
CLEAN = "clean"
"""Value of `broken_by` for a sample that is misclassified before any attack."""
CLAMP = "clamp"
"""And for one that is misclassified once its normalised pixels are clipped to [0, 1]."""
UNATTACKED = (CLEAN, CLAMP)
COUNTS = ("forwards", "backwards", "retracted", "nonfinite", "zero_gradients")
"""Columns of every table of attacks: what was counted while a sample was attacked. They add up over attacks.

forwards, backwards: passes spent on the sample, beyond the one clean forward pass.
retracted: proposals that looked broken and that a plain forward pass answered correctly.
nonfinite: proposals answered with NaN or infinite logits.
zero_gradients: gradients that were zero everywhere.
"""


@dataclass(frozen=True)
class Table:
    """The columns of a task's outcomes under one kind of protocol, in the order in which they are stored.

    Tables in older records may lack the columns of `newer`.
    """

    task: str
    kind: str
    columns: Mapping[str, ColumnType]
    newer: frozenset[str] = frozenset()

    def fits(self, columns: Mapping[str, ColumnType]) -> bool:
        """Tell whether a record with these columns can be read: all of them, or all but the newer ones."""
        older = {name: kind for name, kind in self.columns.items() if name not in self.newer}
        return columns in (self.columns, older)
