"""`rbk board report`: a page of one's own runs, without a board.toml; runs no model and does not import torch."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Intervals, Json, Quiet, To


def report(
    records: Annotated[list[Path], typer.Argument(help="Folders with records, or records (*.record.json).")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for README.md and index.html; by default that of the records."),
    ] = None,
    metric: Annotated[
        list[str],
        typer.Option(
            help="Metric of `rbk list metrics` to show; by default the leading one of each record. Repeatable."
        ),
    ] = [],  # noqa: B006 (typer reads the default)
    to: To = "page",
    intervals: Intervals = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Render a board of your own runs: a row for each model, a column for each protocol, a folder for each data set."""
    import shlex

    from robustbench_kpca.metrics import metric_for
    from robustbench_kpca.records.newest import newest, remark
    from robustbench_kpca.report.consistency import load_all
    from robustbench_kpca.report.inferred import cell_of, infer
    from robustbench_kpca.report.render import write_latex, write_report
    from robustbench_kpca.report.table import cells, frame

    for name in metric:
        metric_for(name)
    folder = out or (records[0] if records[0].is_dir() else records[0].parent)
    loaded, aside = newest(load_all(records), cell_of)
    words = ["rbk", "board", "report", *map(str, records), *(word for name in metric for word in ("--metric", name))]
    title = records[0].absolute().name
    boards, left_out = infer(loaded, title, shlex.join(words), metric)
    pages = write_latex(boards, folder, intervals=intervals) if to == "latex" else write_report(boards, folder)
    if json:
        _console.show_json([{"data": board.spec.data, "rows": cells(board)} for board in boards])
        return
    for board in boards:
        _console.show_frame(board.spec.title, frame(board))
    for text in (remark(aside), *(board.left_out for board in boards)):
        _console.note(text, quiet=quiet)
    if left_out:
        _console.note(
            f"{left_out} of {len(loaded)} records are not on the page, which shows one seed, and of each model the "
            "network of its newest record",
            quiet=quiet,
        )
    for page in pages:
        _console.say(str(page))
