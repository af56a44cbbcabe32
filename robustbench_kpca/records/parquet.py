"""Large tables of outcomes as Parquet (https://parquet.apache.org): read by column, and checked before it is unpacked.

Text and whole numbers are stored through a dictionary, other numbers in single precision, nothing is compressed. So
what a file unpacks to is bounded by its own length and by the number of rows, which is compared with the record's.
"""

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.records.coded import Coded, Column, Columns
from robustbench_kpca.records.footer import require
from robustbench_kpca.records.table import ColumnType, Table
from robustbench_kpca.records.unpacking import MOST, damaged

if TYPE_CHECKING:
    import pyarrow.parquet as pq

GROUP = 2**20
"""Rows that are written, and read, at once."""
_HELD: Mapping[ColumnType, Any] = {"str": np.int32, "int": np.int64, "float": np.float64}
_DICTIONARY = 2**26  # bytes of the texts of a group; beyond it they are written row by row
_LIMITS = {"thrift_string_size_limit": 2**20, "thrift_container_size_limit": 2**16}


def write(columns: Mapping[str, Column]) -> bytes:
    """Return the bytes of a file: equal for equal columns and versions of the library."""
    import pyarrow as pa

    held = {name: columns.held(name) if isinstance(columns, Columns) else columns[name] for name in columns}
    writer = Writer({name: _kind(column) for name, column in held.items()})
    rows = len(next(iter(held.values()), ()))
    for start in range(0, rows, GROUP):
        part = {name: to_arrow(column[start : start + GROUP]) for name, column in held.items()}
        writer.add(pa.table(part))
    return writer.close()


class Writer:
    """Makes the file of a table that arrives in portions; how it is divided into them changes no byte.

    Only the rows of one group are kept beside the bytes of the file.
    """

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        stored = {"str": pa.dictionary(pa.int32(), pa.string()), "int": pa.int64(), "float": pa.float32()}
        self._schema = pa.schema([pa.field(name, stored[kind], nullable=False) for name, kind in columns.items()])
        self._buffer = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._buffer, self._schema, compression="NONE", write_statistics=False, store_schema=False,
            use_dictionary=[name for name, kind in columns.items() if kind != "float"],
            dictionary_pagesize_limit=_DICTIONARY,
        )  # fmt: skip
        self._waiting: list[pa.Table] = []
        self.rows = 0

    def add(self, portion: Any) -> None:
        """Append the rows of an Arrow table: text as strings, and numbers."""
        while len(portion) > 0:
            free = GROUP - self.rows % GROUP
            self._waiting.append(portion.slice(0, free))
            self.rows += min(free, len(portion))
            portion = portion.slice(free)
            if self.rows % GROUP == 0:
                self._write()

    def close(self) -> bytes:
        """Return the bytes of the file."""
        if self._waiting or self.rows == 0:
            self._write()
        self._writer.close()
        return self._buffer.getvalue()

    def _write(self) -> None:
        import pyarrow as pa

        group = pa.concat_tables(self._waiting) if self._waiting else self._schema.empty_table()
        self._waiting = []
        arrays = [
            _stored(column.combine_chunks(), field) for column, field in zip(group.columns, self._schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=GROUP)


def read(data: bytes, table: Table, rows: int, where: str) -> "StoredColumns":
    """Return the columns of a file, each unpacked when it is first asked for.

    Raises:
        BadInputError: it is no Parquet file, or not one of these columns and rows as `write` makes them; so is what
            asking for a column raises.

    """
    width = sum(np.dtype(_HELD[kind]).itemsize for kind in table.columns.values())
    if not 0 <= rows <= MOST // width:
        raise BadInputError(
            f"{where} is of a record that declares {rows:,} rows",
            expected=f"at most {MOST // width:,} of these columns",
        )
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [name for name, kind in table.columns.items() if kind == "str"]
    try:
        require(data, table.columns, rows)  # before the library sees it
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts, **_LIMITS)
    except _damage() as error:
        raise damaged(where, error) from None
    return StoredColumns(file, table, rows, where)


class StoredColumns(Columns):
    """The columns of a Parquet file; those asked for stay in memory."""

    def __init__(self, file: "pq.ParquetFile", table: Table, rows: int, where: str) -> None:
        super().__init__({})
        self._file, self._table, self._rows, self._where = file, table, rows, where

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.columns)

    def __len__(self) -> int:
        return len(self._table.columns)

    def held(self, name: str) -> Column | Coded:
        """Return a column as it is kept, read when it is first asked for.

        Raises:
            BadInputError: damaged.

        """
        if name not in self._held:
            kind = self._table.columns[name]
            try:
                self._held[name] = self._load(name, kind)
            except _damage() as error:
                raise damaged(self._where, error) from None
        return self._held[name]

    def _load(self, name: str, kind: ColumnType) -> Column | Coded:
        found = np.empty(self._rows, _HELD[kind])
        place: dict[str, int] = {}
        at = 0
        for group in range(self._file.num_row_groups):
            for part in self._file.read_row_group(group, columns=[name], use_threads=False).column(0).chunks:
                values: Any = part
                if kind == "str":
                    texts = part.dictionary.to_pylist()
                    codes = np.array([place.setdefault(text, len(place)) for text in texts], np.int32)
                    values = codes[part.indices.to_numpy()] if len(part) else codes
                found[at : at + len(part)] = values if kind == "str" else part.to_numpy()
                at += len(part)
        if at != self._rows or None in place:
            raise ValueError("rows are missing")
        if kind != "str":
            return found
        texts = np.empty(len(place), dtype=object)
        texts[:] = list(place)
        return Coded(found, texts)


def to_arrow(column: Column | Coded) -> Any:
    """Return a column as an Arrow array: text as strings, whole numbers, and other numbers."""
    import pyarrow as pa

    if isinstance(column, Coded):
        values = pa.array(column.values.tolist(), pa.string())
        return pa.DictionaryArray.from_arrays(column.codes, values).cast(pa.string())
    return pa.array(column.tolist(), pa.string()) if column.dtype == object else pa.array(column, from_pandas=False)


def _stored(array: Any, field: Any) -> Any:
    """Return a column as it is stored: texts numbered by appearance, and every NaN as the same one, as in text."""
    import pyarrow as pa

    if field.type == pa.int64():
        return array
    if field.type == pa.float32():
        single = array.to_numpy(zero_copy_only=False).astype(np.float32)
        single[np.isnan(single)] = np.nan
        return pa.array(single, from_pandas=False)
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()


def _kind(column: Column | Coded) -> ColumnType:
    if isinstance(column, Coded) or column.dtype == object:
        return "str"
    return "int" if column.dtype == np.int64 else "float"


def _damage() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    known = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError)
    return (pa.ArrowException, *known)
