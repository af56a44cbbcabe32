"""`rbk demo`: the whole way once, from bundled models and real data to a ranked board, in minutes."""

import time
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._evaluating import Job, Source, run_jobs
from robustbench_kpca.cli._options import Device, Json, Quiet


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the records and the board.")] = Path("rbk-demo"),
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate the bundled models on real digits: clean, under attack, corrupted; rank them; write the board.

    Trains nothing, audits nothing (the board says so) and downloads nothing. A second run takes the finished records
    as they are.
    """
    from robustbench_kpca.protocols.presets import board_path
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.board import load_board
    from robustbench_kpca.report.board_spec import BoardSpec
    from robustbench_kpca.report.render import board_unit, cells, frame, write_board
    from robustbench_kpca.strict import load_toml, validate

    started = time.perf_counter()
    path = board_path("digits")
    spec = validate(BoardSpec, load_toml(path), str(path))
    records = out / "records"
    _console.note(f"{len(spec.models)} models x {len(spec.evaluations)} protocols on {spec.data}", quiet=quiet or json)
    run_jobs(
        [Job(model, [protocol for protocol, _ in spec.evaluations]) for model in spec.models], records,
        Source(spec.data, spec.split), seed=spec.seed, batch_size=64, workers=0, device=device, fresh=False,
        quiet=quiet or json, audited=False,
    )  # fmt: skip
    board = load_board("digits", find_records(records))
    pages = write_board(board, out)
    if json:
        _console.show_json(cells(board))
        return
    table, unit = frame(board), board_unit(board)
    _console.show_frame(f"{spec.title}: {unit.name if unit else 'value'} [95 % interval]", table)
    _console.note(
        f"{time.perf_counter() - started:.0f} s. Bold (**) marks a winner beyond chance. Written:", quiet=quiet
    )
    for page in (*pages, records):
        _console.out.print(str(page), markup=False)
