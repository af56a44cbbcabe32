"""Outcomes: what happened to every sample, as columns. Every metric can be recomputed from them without a model."""

import csv
import gzip
import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from sys import intern
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import sha256
from robustbench_kpca.records.table import COUNTS as COUNTS
from robustbench_kpca.records.table import ColumnType as ColumnType
from robustbench_kpca.records.table import Table as Table

Column = NDArray[Any]
_DAMAGE = (OSError, EOFError, ValueError, IndexError, StopIteration, OverflowError, csv.Error, zlib.error)


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
        typed = {name: _column(columns[name], kind) for name, kind in table.columns.items()}
        return cls(table.task, table.kind, typed)

    @property
    def table(self) -> Table:
        """Names and types of the columns."""
        return Table(self.task, self.kind, {name: _type(column) for name, column in self.columns.items()})

    def __len__(self) -> int:
        return len(self.columns["sample"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per row: what `from_rows` was given."""
        columns = [column.tolist() for column in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def where(self, mask: NDArray[np.bool_]) -> "Outcomes":
        """Keep the rows where `mask` is true."""
        return replace(self, columns={name: column[mask] for name, column in self.columns.items()})

    def sorted(self) -> "Outcomes":
        """Order the rows by sample."""
        order = np.argsort(self["sample"], kind="stable")
        return replace(self, columns={name: column[order] for name, column in self.columns.items()})

    def to_csv(self) -> bytes:
        """Return the canonical text: header, line feeds, floats with the nine digits that single precision needs."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        formatted = [
            [f"{value:.9g}" for value in column] if _type(column) == "float" else column.tolist()
            for column in self.columns.values()
        ]
        writer.writerows(zip(*formatted, strict=True))
        return text.getvalue().encode()

    def digest(self) -> str:
        """SHA-256 of the canonical text (not of the compressed file)."""
        return sha256(self.to_csv())

    def to_file(self) -> bytes:
        """Bytes of the stored file, `.csv.gz`, with no time stamp in them."""
        return gzip.compress(self.to_csv(), mtime=0)

    @classmethod
    def from_file(cls, data: bytes, table: Table, where: str) -> "Outcomes":
        """Parse a stored file that should have the columns of `table`.

        Raises:
            BadInputError: truncated, or another table.

        """
        return cls.from_text(unpack(data, where), table, where)

    @classmethod
    def from_text(cls, text: bytes, table: Table, where: str) -> "Outcomes":
        """Parse the text of a stored file; errors as `from_file`."""
        try:
            header, cells = _parse(text.decode())
            if header != tuple(table.columns):
                raise ValueError
            return cls.from_columns(table, dict(zip(header, cells, strict=True)))
        except _DAMAGE as error:
            raise _damaged(where, error) from None


def _parse(text: str) -> tuple[tuple[str, ...], list[Sequence[str]]]:
    """Return the header and the columns of a CSV text; one without quotes is split at once, which is faster."""
    if '"' in text or "\r" in text or not text.endswith("\n"):
        lines = list(csv.reader(io.StringIO(text, newline="")))
        header, body = tuple(lines[0]), lines[1:]
        return header, list(zip(*body, strict=True)) if body else [()] * len(header)
    first, _, rest = text.partition("\n")
    header, rows = tuple(first.split(",")), rest.count("\n")
    if rest.count(",") != rows * (len(header) - 1):
        raise ValueError
    cells = rest.replace("\n", ",").split(",")[:-1]
    return header, [cells[place :: len(header)] for place in range(len(header))]


def unpack(data: bytes, where: str) -> bytes:
    """Return the text of a stored file.

    Raises:
        BadInputError: truncated, or no such file.

    """
    try:
        return gzip.decompress(data)
    except _DAMAGE as error:
        raise _damaged(where, error) from None


def _damaged(where: str, error: BaseException) -> BadInputError:
    return BadInputError(f"{where} is no whole outcomes table ({type(error).__name__})", fix="evaluate again")


def _column(values: Sequence[Any] | Column, kind: ColumnType) -> Column:
    if kind == "str":  # ids repeat in every table: each is kept once
        return np.array(list(map(_once, values)), dtype=object)
    if kind == "int":
        return np.array(values if isinstance(values, np.ndarray) else list(map(int, values)), dtype=np.int64)
    return np.array(values, dtype=np.float32).astype(np.float64)


def _once(value: Any) -> Any:
    return intern(value) if type(value) is str else value


def _type(column: Column) -> ColumnType:
    return "str" if column.dtype == object else "int" if column.dtype == np.int64 else "float"
