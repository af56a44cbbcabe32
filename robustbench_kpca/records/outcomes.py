"""Outcomes: what happened to every sample, as columns. Every metric can be recomputed from them without a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.files import sha256
from robustbench_kpca.records import text
from robustbench_kpca.records.coded import Coded, Columns, joined
from robustbench_kpca.records.coded import Column as Column
from robustbench_kpca.records.table import COUNTS as COUNTS
from robustbench_kpca.records.table import ColumnType as ColumnType
from robustbench_kpca.records.table import Table as Table


@dataclass(frozen=True)
class Outcomes:
    """Per-sample columns of one evaluation; rows are sorted by the data set's order (and cell).

    task: the task that the samples belong to, such as `classification`.
    kind: the kind of protocol: `clean`, `attack`, `corruption`, `shift` or `ood`.
    columns: equally long arrays: text as objects, whole numbers as int64, others as float64. Text is kept as `Coded`;
        see `coded`.
    """

    task: str
    kind: str
    columns: Mapping[str, Column]

    @classmethod
    def from_rows(cls, table: Table, rows: Sequence[Mapping[str, Any]]) -> "Outcomes":
        """Gather dictionaries with exactly the columns of `table`."""
        return cls.from_columns(table, {name: [row[name] for row in rows] for name in table.columns})

    @classmethod
    def from_columns(cls, table: Table, columns: Mapping[str, Sequence[Any] | Column | Coded]) -> "Outcomes":
        """Gather columns of equal length, exactly those of `table`."""
        typed = {name: text.typed(columns[name], kind) for name, kind in table.columns.items()}
        return cls(table.task, table.kind, Columns(typed))

    @classmethod
    def from_text(cls, content: bytes, table: Table, where: str) -> "Outcomes":
        """Parse a text that should have the columns of `table`.

        Raises:
            BadInputError: truncated, or another table.
        """
        return cls(table.task, table.kind, Columns(text.parse(content, table, where)))

    @classmethod
    def joined(cls, parts: Sequence["Outcomes"]) -> "Outcomes":
        """Return tables of the same columns below each other as one."""
        first = parts[0]
        columns = {name: joined([part.kept[name] for part in parts]) for name in first.columns}
        return cls(first.task, first.kind, Columns(columns))

    @property
    def table(self) -> Table:
        """Names and types of the columns."""
        return Table(self.task, self.kind, {name: _type(column) for name, column in self.kept.items()})

    def __len__(self) -> int:
        return len(self.kept["sample"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def coded(self, name: str) -> Coded:
        """Return a column of text as numbers."""
        column = self.kept[name]
        assert isinstance(column, Coded)
        return column

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per row: what `from_rows` was given."""
        columns = [column.tolist() for column in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def where(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "Outcomes":
        """Return some rows: those where a mask is true, or those of these numbers, in their order."""
        return replace(self, columns=Columns({name: column[rows] for name, column in self.kept.items()}))

    def sorted(self) -> "Outcomes":
        """Order the rows by sample."""
        return self.where(np.argsort(self["sample"], kind="stable"))

    def to_csv(self) -> bytes:
        """Return the canonical text; see `text.write`."""
        return text.write(self.kept)

    def digest(self) -> str:
        """SHA-256 of the canonical text (not of the packed file), computed once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return sha256(self.to_csv())

    @cached_property
    def kept(self) -> dict[str, Column | Coded]:
        """The columns as they are kept."""
        columns = self.columns
        return {name: columns.held(name) if isinstance(columns, Columns) else _kept(columns[name]) for name in columns}


def _kept(column: Column) -> Column | Coded:
    return Coded.of(column.tolist()) if column.dtype == object else column


def _type(column: Column | Coded) -> ColumnType:
    return "str" if isinstance(column, Coded) else "int" if column.dtype == np.int64 else "float"
