"""`rbk board plan`: list the missing runs of a board and the commands that make them."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json, Presets

if TYPE_CHECKING:
    from robustbench_kpca.report.board import Run


def plan(
    board: Annotated[str, typer.Argument(help="Board: a name of `rbk list boards`, or a folder with a board.toml.")],
    records: Annotated[Path | None, typer.Option(help="Folder of records; by default that of the board.")] = None,
    presets: Presets = None,  # noqa: ARG001 (set by its callback)
    json: Json = False,
) -> None:
    """List the missing runs of a board and the commands that make them."""
    from robustbench_kpca.protocols.presets import board_path
    from robustbench_kpca.records.record import SUFFIX
    from robustbench_kpca.report.matching import load_board

    folder = board_path(board).parent / "records" if records is None else records
    loaded = load_board(board, sorted(folder.rglob(f"*{SUFFIX}")))
    open_runs = [run for run in loaded.runs if run.record is None]
    if json:
        _console.show_json([{"model": r.model, **asdict(r.evaluation), "state": r.state} for r in loaded.runs])
        return
    _console.out.print(f"{len(loaded.runs) - len(open_runs)} of {len(loaded.runs)} runs are finished.")
    if open_runs:
        rows = [(run.model, run.evaluation.data, run.evaluation.protocol, run.state) for run in open_runs]
        _console.show_table("", ("Model", "Data", "Protocol", "State"), rows)
    together: dict[tuple[object, ...], list[Run]] = {}
    for run in open_runs:
        together.setdefault((run.model, *run.evaluation.samples, run.evaluation.eps), []).append(run)
    for runs in together.values():
        _console.out.print(shlex.join(_command(runs, loaded.spec.seed, folder)), markup=False)


def _command(runs: "list[Run]", seed: int, folder: Path) -> list[str]:
    """Return the command of runs of one model on the same samples."""
    wanted = runs[0].evaluation
    words = ["rbk", "eval", "--model", runs[0].model, "--data", wanted.data, "--split", wanted.split]
    words += [] if wanted.against is None else ["--against", wanted.against]
    words += ["--seed", str(seed), "--out", str(folder)]
    words += [] if wanted.limit is None else ["--limit", str(wanted.limit)]
    words += [word for key, value in wanted.overrides.items() for word in ("--set", f"{key}={value}")]
    return words + [word for run in runs for word in ("--protocol", run.evaluation.protocol)]
