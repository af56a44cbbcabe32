"""`rbk records export`: write records as csv, json, parquet or LaTeX."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Quiet


def export(
    records: Annotated[list[Path], typer.Argument(help="Records (*.record.json), or folders with records.")],
    to: Annotated[
        Literal["csv", "json", "parquet", "latex"],
        typer.Option(help="Format; latex: a table with intervals, one row a record."),
    ] = "csv",
    by: Annotated[
        Literal["record", "sample"], typer.Option(help="One row a record, or one row a sample (csv, json, parquet).")
    ] = "record",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File; by default print it."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write records in the format of another tool: rbk records export runs --to csv -o runs.csv."""
    from robustbench_kpca._core.errors import BadInputError
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.records.collection import Records
    from robustbench_kpca.report.consistency import load_all
    from robustbench_kpca.report.export import BINARY
    from robustbench_kpca.report.export import export as written

    if out is None and to in BINARY:
        raise BadInputError(f"--to {to} without --out", fix="add -o FILE")
    loaded = Records(load_all(records))
    content = written(loaded, to, by)
    if out is None:
        print(content.decode(), end="")
    else:
        write_atomic(out, content)
        _console.say(str(out))
    _console.note(f"{len(loaded)} records", quiet=quiet)
