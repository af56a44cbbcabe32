"""Outcomes: what happened to every sample, as columns. Every metric can be recomputed from them without a model."""

import csv
import gzip
import io
import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.files import sha256
from robustbench_kpca.records import parquet
from robustbench_kpca.records.coded import Coded, Columns
from robustbench_kpca.records.coded import Column as Column
from robustbench_kpca.records.table import COUNTS as COUNTS
from robustbench_kpca.records.table import ColumnType as ColumnType
from robustbench_kpca.records.table import Table as Table
from robustbench_kpca.records.unpacking import MOST, damaged, unpack

TEXT_FILE, OLD_TEXT_FILE, LARGE_FILE = ".outcomes.csv.xz", ".outcomes.csv.gz", ".outcomes.parquet"
"""Ends of the names of tables: text, text of older records, and for tables of more than `LARGE` rows Parquet."""
LARGE = 100_000
_PACK: Mapping[str, Callable[[bytes], bytes]] = {
    TEXT_FILE: lzma.compress, OLD_TEXT_FILE: lambda text: gzip.compress(text, mtime=0), LARGE_FILE: bytes,
}  # fmt: skip
_DAMAGE = (OSError, EOFError, ValueError, IndexError, StopIteration, OverflowError, csv.Error)


@dataclass(frozen=True)
class StoredTable:
    """A table as it is stored.

    suffix: the end of its file's name.
    unpacked: the uncompressed text, or the bytes of the file where that is Parquet.
    """

    suffix: str
    unpacked: bytes

    @cached_property
    def sha256(self) -> str:
        """The digest that a record has of it: of what is `unpacked`."""
        return sha256(self.unpacked)

    @property
    def content(self) -> bytes:
        """The bytes of its file, packed at every call."""
        return _PACK[self.suffix](self.unpacked)


@dataclass(frozen=True)
class Outcomes:
    """Per-sample columns of one evaluation; rows are sorted by the data set's order (and cell).

    task: the task that the samples belong to, such as `classification`.
    kind: the kind of protocol: `clean`, `attack`, `corruption`, `shift` or `ood`.
    columns: equally long arrays: text as objects, whole numbers as int64, others as float64. In large tables text is
        kept as `Coded`; see `coded`.
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
        typed = {name: _column(columns[name], kind) for name, kind in table.columns.items()}
        return cls(table.task, table.kind, Columns(typed))

    @classmethod
    def from_parquet(cls, content: bytes, table: Table, rows: int, where: str) -> "Outcomes":
        """Take the bytes of a Parquet file; each column is unpacked when it is first asked for.

        Raises:
            BadInputError: it is not one of these columns and rows, or damaged.

        """
        found = cls(table.task, table.kind, parquet.read(content, table, rows, where))
        found.__dict__["_large"] = StoredTable(LARGE_FILE, content)
        return found

    @property
    def table(self) -> Table:
        """Names and types of the columns."""
        return Table(self.task, self.kind, {name: _type(self._held(name)) for name in self.columns})

    def __len__(self) -> int:
        return len(self._held("sample"))

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def coded(self, name: str) -> Coded:
        """Return a column of text as numbers."""
        found = self._held(name)
        if isinstance(found, Coded):
            return found
        return self._coded.setdefault(name, Coded.of(found.tolist()))

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per row: what `from_rows` was given."""
        columns = [column.tolist() for column in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def where(self, mask: NDArray[np.bool_]) -> "Outcomes":
        """Keep the rows where `mask` is true."""
        if isinstance(self.columns, Columns):
            return replace(self, columns=self.columns.where(mask))
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
            [f"{value:.9g}" for value in column.tolist()] if _type(column) == "float" else column.tolist()
            for column in self.columns.values()
        ]
        writer.writerows(zip(*formatted, strict=True))
        return text.getvalue().encode()

    def digest(self) -> str:
        """SHA-256 of the canonical text (not of the compressed file)."""
        return sha256(self.to_csv())

    def to_file(self) -> bytes:
        """Bytes of the file as text, `.csv.xz`."""
        return self.stored(TEXT_FILE).content

    def stored(self, suffix: str | None = None) -> StoredTable:
        """Return the table as it is stored; `suffix` says in which form, by default that of its size."""
        if suffix is None:
            suffix = LARGE_FILE if len(self) > LARGE else TEXT_FILE
        return self._large if suffix == LARGE_FILE else StoredTable(suffix, self.to_csv())

    @cached_property
    def _large(self) -> StoredTable:
        return StoredTable(LARGE_FILE, parquet.write(self.columns))

    @cached_property
    def _coded(self) -> dict[str, Coded]:
        return {}

    def _held(self, name: str) -> Column | Coded:
        return self.columns.held(name) if isinstance(self.columns, Columns) else self.columns[name]

    @classmethod
    def from_file(cls, data: bytes, table: Table, where: str) -> "Outcomes":
        """Parse a stored file that should have the columns of `table`.

        Raises:
            BadInputError: truncated, or another table.

        """
        return cls.from_text(unpack(data, MOST, where), table, where)

    @classmethod
    def from_text(cls, text: bytes, table: Table, where: str) -> "Outcomes":
        """Parse the text of a stored file; errors as `from_file`."""
        try:
            header, cells = _parse(text.decode())
            if header != tuple(table.columns):
                raise ValueError
            return cls.from_columns(table, dict(zip(header, cells, strict=True)))
        except _DAMAGE as error:
            raise damaged(where, error) from None


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


def _column(values: Sequence[Any] | Column | Coded, kind: ColumnType) -> Column | Coded:
    if kind == "str":
        return values if isinstance(values, Coded) else Coded.of(values)
    assert not isinstance(values, Coded)
    if kind == "int":
        return np.array(values if isinstance(values, np.ndarray) else list(map(int, values)), dtype=np.int64)
    return np.array(values, dtype=np.float32).astype(np.float64)


def _type(column: Column | Coded) -> ColumnType:
    if isinstance(column, Coded):
        return "str"
    return "str" if column.dtype == object else "int" if column.dtype == np.int64 else "float"
