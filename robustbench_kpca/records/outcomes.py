"""Outcomes: what happened to every sample, as columns. Every metric can be recomputed from them without a model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.files import sha256
from robustbench_kpca.records import text
from robustbench_kpca.records.table import COUNTS as COUNTS
from robustbench_kpca.records.table import ColumnType as ColumnType
from robustbench_kpca.records.table import Table as Table
from robustbench_kpca.records.text import Column as Column


@dataclass(frozen=True)
class Outcomes:
    """Per-sample columns of one evaluation; rows are sorted by the data set's order (and cell).

    task: the task that the samples belong to, such as `classification`.
    kind: the kind of protocol: `clean`, `attack`, `corruption`, `shift` or `ood`.
    columns: equally long arrays: text as objects, whole numbers as int64, others as float64.
    """

    task: str
    kind: str
    columns: Mapping[str, Column]

    @classmethod
    def from_rows(cls, table: Table, rows: Sequence[Mapping[str, Any]]) -> "Outcomes":
        """Gather dictionaries with exactly the columns of `table`."""
        return cls.from_columns(table, {name: [row[name] for row in rows] for name in table.columns})

    @classmethod
    def from_columns(cls, table: Table, columns: Mapping[str, Sequence[Any] | Column]) -> "Outcomes":
        """Gather columns of equal length, exactly those of `table`."""
        return cls(
            table.task, table.kind, {name: text.typed(columns[name], kind) for name, kind in table.columns.items()}
        )

    @classmethod
    def from_text(cls, content: bytes, table: Table, where: str) -> "Outcomes":
        """Parse a text that should have the columns of `table`.

        Raises:
            BadInputError: truncated, or another table.
        """
        return cls(table.task, table.kind, text.parse(content, table, where))

    @classmethod
    def joined(cls, parts: Sequence["Outcomes"]) -> "Outcomes":
        """Return tables of the same columns below each other as one."""
        first = parts[0]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in first.columns}
        return cls(first.task, first.kind, columns)

    @property
    def table(self) -> Table:
        """Names and types of the columns."""
        return Table(self.task, self.kind, {name: _type(column) for name, column in self.columns.items()})

    def __len__(self) -> int:
        return len(self["sample"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def numbered(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.object_]]:
        """Return, for each row, the index of its text among the different texts of a column; and those texts.

        The different texts are in order of first appearance. Computed once per column.
        """
        if name not in self._numbered:
            self._numbered[name] = numbered(self[name])
        return self._numbered[name]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per row: what `from_rows` was given."""
        columns = [column.tolist() for column in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def where(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "Outcomes":
        """Return some rows: those where a mask is true, or those of these numbers, in their order."""
        return replace(self, columns={name: column[rows] for name, column in self.columns.items()})

    def sorted(self) -> "Outcomes":
        """Return the rows ordered by sample id, as text; rows of one sample keep their order."""
        return self.where(np.argsort(self["sample"], kind="stable"))

    def to_csv(self) -> bytes:
        """Return the canonical text; see `text.write`."""
        return text.write(self.columns)

    def digest(self) -> str:
        """SHA-256 of the canonical text (not of the packed file), computed once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return sha256(self.to_csv())

    @cached_property
    def _numbered(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.object_]]]:
        return {}


def numbered(texts: Column) -> tuple[NDArray[np.int64], NDArray[np.object_]]:
    """Return the index of each text among the different texts; and those, in order of first appearance."""
    import pandas as pd  # slow to import, and not needed for a table of one cell

    codes, different = pd.factorize(texts)
    return codes, different


def _type(column: Column) -> ColumnType:
    return "str" if column.dtype == object else "int" if column.dtype == np.int64 else "float"
