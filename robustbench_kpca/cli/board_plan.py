"""`rbk board plan`: list the missing runs of a board and the commands that make them."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json


def plan(
    board: Annotated[str, typer.Argument(help="Board: a name of `rbk list boards`, or a folder with a board.toml.")],
    records: Annotated[Path | None, typer.Option(help="Folder of records; by default that of the board.")] = None,
    json: Json = False,
) -> None:
    """List the missing runs of a board and the commands that make them."""
    from robustbench_kpca.data.names import is_outside
    from robustbench_kpca.evaluation.versions import addresses
    from robustbench_kpca.models.outside_code import outside_code
    from robustbench_kpca.protocols.presets import ENVIRONMENT_VARIABLE, board_folder
    from robustbench_kpca.records.record import SUFFIX
    from robustbench_kpca.report.commands import command, together
    from robustbench_kpca.report.matching import load_board

    if records is not None and records.is_file():
        raise BadInputError(f"--records {records} is a file", expected="a folder, into which the commands write")
    if records is not None and not records.is_dir():
        _console.note(f"there is no folder {records} yet")
    loaded = load_board(board, None if records is None else sorted(records.rglob(f"*{SUFFIX}")))
    open_runs = [run for run in loaded.runs if run.record is None]
    if json:
        _console.show_json([{"model": r.model, **asdict(r.evaluation), "state": r.state} for r in loaded.runs])
        return
    _console.out().print(f"{len(loaded.runs) - len(open_runs)} of {len(loaded.runs)} runs are finished.")
    if not open_runs:
        return
    if loaded.left_out:
        _console.say(loaded.left_out)
    rows = [(run.model, run.evaluation.data, run.evaluation.protocol, run.state) for run in open_runs]
    _console.show_table("", ("Model", "Data", "Protocol", "State"), rows)
    for model in (loaded.spec.described(name) for name in dict.fromkeys(run.model for run in open_runs)):
        code = outside_code(model.source or model.name, model.options, model.checkpoint)
        if code:
            _console.note(f"before you run the command of {model.name}, read what the board names: {code}")
    for evaluation in dict.fromkeys(run.evaluation for run in open_runs):
        for code in addresses(evaluation.resolve()[1]) + ([evaluation.data] if is_outside(evaluation.data) else []):
            _console.note(f"before you run the commands, read what the board names: {code} would be imported")
    folder = board_folder(board) / "records" if records is None else records
    for runs in together(loaded.spec, open_runs):
        _console.say(command(loaded.spec, runs, folder, os.environ.get(ENVIRONMENT_VARIABLE)))
