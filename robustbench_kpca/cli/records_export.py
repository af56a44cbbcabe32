"""`rbk records export`: write records as csv or json, or as the file of RobustBench about a model."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._evaluating import refuse_others
from robustbench_kpca.cli._options import Quiet


def export(
    records: Annotated[list[Path], typer.Argument(help="Records (*.record.json), or folders with records.")],
    to: Annotated[
        Literal["csv", "json", "robustbench"],
        typer.Option(help="Format; robustbench: its file about a model on ImageNet-C."),
    ] = "csv",
    by: Annotated[Literal["record", "sample"], typer.Option(help="One row for each record or sample.")] = "record",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File; by default print it."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write records in the format of another tool: rbk records export runs --to csv -o runs.csv."""
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.records.collection import Records
    from robustbench_kpca.report.consistency import load_all
    from robustbench_kpca.report.export import entry
    from robustbench_kpca.report.export import export as written

    loaded = Records(load_all(records))
    if to == "robustbench":
        refuse_others(["by"] * (by != "record"), "--to robustbench", ())
        content = entry(loaded)
    else:
        content = written(loaded, to, by)
    if out is None:
        print(content, end="")
    else:
        write_atomic(out, content.encode())
        _console.say(str(out))
    _console.note(_console.count(len(loaded), "record"), quiet=quiet)
