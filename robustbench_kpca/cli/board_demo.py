"""`rbk board demo`: evaluate the bundled models on bundled data and write a ranked leaderboard, in minutes."""

import time
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Device, Json, Quiet


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the records and the board.")] = Path("rbk-demo"),
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate the bundled models on handwritten digits (clean, attacked, corrupted) and write a ranked board.

    The command trains and downloads nothing. It does not audit the models, and the board says so. A second run uses the
    finished records again.
    """
    from robustbench_kpca._core.strict import load_toml, validate
    from robustbench_kpca.cli._tally import Tally
    from robustbench_kpca.evaluation.execute import execute
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.evaluation.plan import Job, make_plan
    from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
    from robustbench_kpca.protocols.presets import board_path
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.board_spec import BoardSpec
    from robustbench_kpca.report.matching import load_board
    from robustbench_kpca.report.render import write_board
    from robustbench_kpca.report.table import board_unit, cells, frame

    started = time.perf_counter()
    path = board_path("digits")
    spec = validate(BoardSpec, load_toml(path), str(path))
    records = out / "records"
    _console.note(f"{len(spec.models)} models x {len(spec.evaluations)} protocols on {spec.data}", quiet=quiet or json)
    jobs = [Job(ModelRequest(model), [needed.protocol for needed in spec.evaluations]) for model in spec.models]
    options = RunOptions(seed=spec.seed, batch_size=64, device=device, out=records)
    plan = make_plan(jobs, DataRequest(spec.data, spec.split), options, audit=False)
    with _console.screen(quiet=quiet or json) as on_screen:
        execute(plan, Tally(on_screen, len(spec.models), len(spec.evaluations)))
    board = load_board("digits", find_records(records))
    pages = write_board(board, out)
    if json:
        _console.show_json(cells(board))
        return
    table, unit = frame(board), board_unit(board)
    _console.show_frame(f"{spec.title}: {unit.name if unit else 'value'} [95 % interval]", table)
    _console.note(
        f"{time.perf_counter() - started:.0f} s. Bold (**) marks a statistically significant winner. Written:",
        quiet=quiet,
    )
    for page in (*pages, records):
        _console.say(str(page))
