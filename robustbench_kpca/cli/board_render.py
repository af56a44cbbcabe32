"""`rbk board render`: render a board from its records; runs no model and does not import torch."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Intervals, Json, Quiet, To


def render(
    board: Annotated[str, typer.Argument(help="Board: a name of `rbk list boards`, or a folder with a board.toml.")],
    records: Annotated[Path | None, typer.Option(help="Folder of records; by default that of the board.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the pages; by default that of the board, or ./NAME for a board of the installed package.",
        ),
    ] = None,
    to: To = "page",
    intervals: Intervals = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Render a board from records: README.md, index.html, board.csv and board.json."""
    from robustbench_kpca.protocols.presets import board_folder, board_path

    board_path(board)
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.matching import load_board
    from robustbench_kpca.report.render import write_board, write_latex
    from robustbench_kpca.report.table import cells, frame

    loaded = load_board(board, None if records is None else find_records(records))
    folder = out or board_folder(board)
    pages = write_latex([loaded], folder, intervals=intervals) if to == "latex" else write_board(loaded, folder)
    if json:
        _console.show_json(cells(loaded))
        return
    table = frame(loaded)
    _console.show_frame(loaded.spec.title, table)
    missing = sum(run.record is None for run in loaded.runs)
    if missing:
        _console.note(f"{missing} of {len(loaded.runs)} runs are missing: {loaded.missing}", quiet=quiet)
    if loaded.left_out:
        _console.note(loaded.left_out, quiet=quiet)
    for page in pages:
        _console.say(str(page))
