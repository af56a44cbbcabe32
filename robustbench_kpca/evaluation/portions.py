"""Join tables that arrive as texts, one portion of rows after the other, without holding all of them. No torch.

Rows are put in the order of one plain run, cell by cell: each portion is sorted and set aside in a file, and the cells
are then read from these files one after the other.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustbench_kpca.records.outcomes import LARGE, Outcomes
from robustbench_kpca.records.parquet import Writer, to_arrow
from robustbench_kpca.records.table import ColumnType, Table

Cell = tuple[str, int]
"""Name of a corruption, and severity."""


def join(texts: Iterable[bytes], table: Table, cells: Sequence[Cell], folder: Path) -> Outcomes:
    """Return one table of all rows, whose bytes do not depend on the portions.

    Args:
        texts: CSV with header, each with the rows of some samples.
        table: the columns.
        cells: in order; within a cell the rows keep the order in which they arrive.
        folder: where portions are set aside.

    Raises:
        BadInputError: a text is not of this table.

    """
    portions: Iterator[Any] = (_parse(text, table, str(folder)) for text in texts)
    writer = Writer(table.columns)
    if len(cells) == 1 or "corruption" not in table.columns:
        for portion in portions:
            writer.add(portion)
    else:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".merging-") as aside:
            for part in _by_cell(portions, cells, Path(aside)):
                writer.add(part)
    rows = writer.rows
    joined = Outcomes.from_parquet(writer.close(), table, rows, str(folder))
    if rows > LARGE:
        return joined
    return Outcomes.from_columns(table, {name: _held(joined, name, kind) for name, kind in table.columns.items()})


def _parse(text: bytes, table: Table, where: str) -> Any:
    """Return a text as an Arrow table; one with quotes is read as every stored table is, which is slower."""
    import pyarrow as pa
    from pyarrow import csv

    header, _, _ = text.partition(b"\n")
    if b'"' in text or b"\r" in text or header.decode() != ",".join(table.columns):
        found = Outcomes.from_text(text, table, where)
        return pa.table({name: to_arrow(_held(found, name, kind)) for name, kind in table.columns.items()})
    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
    return csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(use_threads=False),
        convert_options=csv.ConvertOptions(
            column_types={name: types[kind] for name, kind in table.columns.items()},
            null_values=[], strings_can_be_null=False,
        ),
    )  # fmt: skip


def _held(outcomes: Outcomes, name: str, kind: ColumnType) -> Any:
    return outcomes.coded(name) if kind == "str" else outcomes[name]


def _by_cell(portions: Iterator[Any], cells: Sequence[Cell], aside: Path) -> Iterator[Any]:
    """Yield the rows cell by cell; portions are mapped into memory, so that the system keeps of them what it can."""
    import pyarrow as pa

    places = {cell: number for number, cell in enumerate(cells)}
    ends: list[Any] = []
    for number, portion in enumerate(portions):
        cell = _cell_of(portion, places)
        ends.append(np.cumsum(np.bincount(cell, minlength=len(cells))))
        with pa.OSFile(str(aside / str(number)), "wb") as sink, pa.ipc.new_file(sink, portion.schema) as file:
            file.write_table(portion.take(pa.array(np.argsort(cell, kind="stable"))))
    sources = [pa.memory_map(str(aside / str(number))) for number in range(len(ends))]
    tables = [pa.ipc.open_file(source).read_all() for source in sources]
    for place in range(len(cells)):
        for end, table in zip(ends, tables, strict=True):
            start = end[place - 1] if place else 0
            yield table.slice(start, end[place] - start)


def _cell_of(portion: Any, places: dict[Cell, int]) -> Any:
    """Return the place of each row's cell."""
    names = portion["corruption"].combine_chunks().dictionary_encode()
    severity = portion["severity"].to_numpy()
    levels = np.unique(severity)
    known = np.array(
        [[places.get((name, int(level)), -1) for level in levels] for name in names.dictionary.to_pylist()], np.int64
    ).reshape(-1, len(levels))
    found = known[names.indices.to_numpy(), np.searchsorted(levels, severity)]
    if (found < 0).any():
        raise KeyError("a cell that is not of the protocol")
    return found
