"""`rbk records export`: write records as csv, json, parquet or LaTeX, or as the files of RobustBench."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Quiet


class Format(StrEnum):
    """Formats of `report.export`."""

    csv = "csv"
    json = "json"
    parquet = "parquet"
    latex = "latex"
    robustbench = "robustbench"


class By(StrEnum):
    """What a row of the table is."""

    record = "record"
    sample = "sample"


def export(
    records: Annotated[list[Path], typer.Argument(help="Records (*.record.json), or folders with records.")],
    to: Annotated[Format, typer.Option(help="Format; robustbench: the JSON of its model_info files.")] = Format.csv,
    by: Annotated[By, typer.Option(help="One row a record, or one row a sample (csv, json, parquet).")] = By.record,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File, or with `--to robustbench` a folder; by default print it."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write records in the format of another tool: rbk records export runs --to csv -o runs.csv."""
    import json

    from robustbench_kpca._core.errors import BadInputError
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.records.collection import Records
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.consistency import load_consistent
    from robustbench_kpca.report.export import BINARY
    from robustbench_kpca.report.export import export as written

    if out is None and to.value in BINARY:
        raise BadInputError(f"--to {to.value} without --out", fix="add -o FILE")
    loaded = Records([load_consistent(path) for place in records for path in find_records(place)])
    content = written(loaded, to.value, by.value)
    if out is None:
        print(content.decode(), end="")
    elif to is Format.robustbench and out.suffix != ".json":
        for name, entry in json.loads(content).items():
            write_atomic(out / name, (json.dumps(entry, indent=2) + "\n").encode())
            _console.say(str(out / name))
    else:
        write_atomic(out, content)
        _console.say(str(out))
    _console.note(f"{len(loaded)} records", quiet=quiet)
