"""A table of outcomes as text: CSV, packed by xz, unpacked no further than its record can need, parsed in portions."""

import csv
import io
import lzma
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from sys import intern
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of
from robustbench_kpca.records.table import ColumnType, Table

Column = NDArray[Any]

SUFFIX = ".outcomes.csv.xz"
NUMBER, TEXT = 32, 1024
"""Bytes that a number and a text of a row may take, on average over the rows: generous (an id may be a path)."""
SPARE = 2**16
MOST = 2**30
"""Bytes of any table, as text and as columns: 50,000 images under 76 corruptions take about a quarter of it."""
PORTION = 2**16
"""Rows that are written, or parsed where cells have quotes, at once."""
_CHUNK = 2**20
_XZ_MEMORY = 2**26  # bytes that unpacking may take (ours need 2**23)
_QUICK = 2**22  # bytes of text beyond which packing well would take minutes
_CELL = 8  # bytes in memory; each text is kept once
_DAMAGE = (ValueError, OverflowError, csv.Error)


def write(columns: Mapping[str, Column]) -> bytes:
    """Return the canonical text: header, line feeds, floats with the nine digits that single precision needs."""
    content = io.BytesIO()
    lines = io.TextIOWrapper(content, "utf-8", newline="", write_through=True)
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    for start in range(0, len(next(iter(columns.values()))), PORTION):
        writer.writerows(zip(*(_cells(column[start : start + PORTION]) for column in columns.values()), strict=True))
    return content.getvalue()


def _cells(column: Column) -> list[object]:
    return [f"{value:.9g}" for value in column.tolist()] if column.dtype == np.float64 else column.tolist()


def pack(text: bytes) -> bytes:
    """Return a text as it is stored."""
    return lzma.compress(text, preset=0 if len(text) > _QUICK else None)


def most_bytes(table: Table, rows: int, where: str) -> int:
    """Return the most bytes of text that the rows of a table may take, the header included.

    Raises:
        BadInputError: no table has so many rows of these columns.
    """
    most = MOST // (_CELL * len(table.columns))
    if not 0 <= rows <= most:
        raise BadInputError(
            f"{where} is of a record that declares {rows:,} rows", expected=f"at most {most:,} of these columns"
        )
    return min(MOST, SPARE + (rows + 1) * sum(TEXT if kind == "str" else NUMBER for kind in table.columns.values()))


def unpack(data: bytes, most: int, where: str) -> bytes:
    """Return the text of a stored file; stop as soon as it is longer than `most` bytes.

    Raises:
        BadInputError: longer, truncated, or no such file.
    """
    text = io.BytesIO()
    try:
        for chunk in _chunks(data, min(_CHUNK, most + 1)):
            if text.write(chunk) + text.tell() - len(chunk) > most:
                raise BadInputError(
                    f"{where} unpacks to more than {most:,} bytes",
                    expected="a table of the rows of its record",
                    fix="do not use it; ask who made it, or evaluate again",
                )
    except (UnfitError, lzma.LZMAError) as error:
        raise _damaged(where, error) from None
    return text.getvalue()


def _chunks(data: bytes, size: int) -> Iterator[bytes]:
    """Yield the text of a file in portions of at most `size` bytes."""
    packed = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY)
    yield packed.decompress(data, size)
    while not packed.eof:
        if packed.needs_input:
            raise UnfitError("it ends too early")
        yield packed.decompress(b"", size)
    if packed.unused_data:
        raise UnfitError("more follows its end")


def parse(text: bytes, table: Table, where: str) -> dict[str, Column]:
    """Return the columns of a text.

    Raises:
        BadInputError: truncated, or another table.
    """
    kinds = list(table.columns.values())
    try:
        portions = _portions(text)
        if [name for (name,) in next(portions)] != list(table.columns):
            raise UnfitError("other columns")
        parts = [
            [typed(cells, kind) for cells, kind in zip(portion, kinds, strict=True)]
            for portion in chain(portions, [[()] * len(kinds)])
        ]
    except _DAMAGE as error:
        raise _damaged(where, error) from None
    return {name: np.concatenate([part.pop(0) for part in parts]) for name in table.columns}


def _portions(text: bytes) -> Iterator[Sequence[Sequence[str]]]:
    """Yield columns of cells, first of the header alone; what has no quotes is split at once, in half the time."""
    content = io.BytesIO(text)
    if b'"' in text or b"\r" in text or not text.endswith(b"\n"):
        rows = csv.reader(io.TextIOWrapper(content, "utf-8", newline=""))
        yield list(zip(next(rows, ())))
        while portion := list(islice(rows, PORTION)):
            yield list(zip(*portion, strict=True))
        return
    header = content.readline().decode()[:-1].split(",")
    yield list(zip(header))
    width = len(header)
    while lines := content.readlines(_CHUNK):
        cells = b"".join(lines).decode().replace("\n", ",").split(",")[:-1]
        if len(cells) != len(lines) * width:
            raise UnfitError("rows of other lengths")
        yield [cells[place::width] for place in range(width)]


def typed(values: Sequence[Any] | Column, kind: ColumnType) -> Column:
    """Return a column as it is kept: text as objects, whole numbers as int64, others in single precision as float64."""
    if kind == "float":
        return np.array(values, dtype=np.float32).astype(np.float64)
    if kind == "int" and isinstance(values, np.ndarray):
        return np.array(values, dtype=np.int64)
    make = int if kind == "int" else lambda value: intern(value) if type(value) is str else value
    made = {value: make(value) for value in set(values)}  # most occur many times
    return np.array(list(map(made.__getitem__, values)), dtype=np.int64 if kind == "int" else object)


def _damaged(where: str, error: BaseException) -> BadInputError:
    """Return the error for a file that is no table, or a part of one."""
    return BadInputError(f"{where} is no whole outcomes table ({reason_of(error)})", fix="evaluate again")
