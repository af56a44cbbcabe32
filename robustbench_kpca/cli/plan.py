"""`rbk plan`: list the missing runs of a board and the commands that make them."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json, Presets


def plan(
    board: Annotated[str, typer.Argument(help="Board: a name of `rbk list boards`, or a folder with a board.toml.")],
    records: Annotated[Path | None, typer.Option(help="Folder of records; by default that of the board.")] = None,
    presets: Presets = None,  # noqa: ARG001 (set by its callback)
    json: Json = False,
) -> None:
    """List the missing runs of a board and the commands that make them."""
    from robustbench_kpca.protocols.presets import board_path
    from robustbench_kpca.records.record import SUFFIX
    from robustbench_kpca.report.board import load_board

    folder = board_path(board).parent / "records" if records is None else records
    loaded = load_board(board, sorted(folder.rglob(f"*{SUFFIX}")))
    open_runs = [run for run in loaded.runs if run.record is None]
    if json:
        _console.show_json([{"model": r.model, "protocol": r.protocol, "state": r.state} for r in loaded.runs])
        return
    _console.out.print(f"{len(loaded.runs) - len(open_runs)} of {len(loaded.runs)} runs are finished.")
    if open_runs:
        rows = [(run.model, run.protocol, run.state) for run in open_runs]
        _console.show_table("", ("Model", "Protocol", "State"), rows)
    for model, against in dict.fromkeys((run.model, run.against) for run in open_runs):
        words = ["rbk", "eval", "--model", model, "--data", loaded.spec.data, "--split", loaded.spec.split]
        words += [] if against is None else ["--against", against]
        words += ["--seed", str(loaded.spec.seed), "--out", str(folder)]
        words += [] if loaded.spec.limit is None else ["--limit", str(loaded.spec.limit)]
        for run in open_runs:
            words += ["--protocol", run.protocol] if (run.model, run.against) == (model, against) else []
        _console.out.print(shlex.join(words), markup=False)
