"""`rbk board break`: lower the number of a row by adversarial images that somebody found."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console
from robustbench_kpca.cli._evaluating import refuse_others
from robustbench_kpca.cli._options import Device, Quiet, RunCode


def break_row(
    row: Annotated[str, typer.Argument(help="Row of --board, or the record (*.record.json) of an attack of your own.")],
    images: Annotated[
        Path,
        typer.Option(
            help="Images in float32: an .npz with the arrays `samples`, names of samples, and `attacked`, an image of "
            "each; or one tensor of all samples in order (.npy, .safetensors, torch.save)."
        ),
    ],
    by: Annotated[str, typer.Option(help="Who found the images; the board shows the name.")],
    method: Annotated[str, typer.Option(help="How they were found, in words.")] = "method not stated",
    board: Annotated[
        str | None, typer.Option(help="Board: a name of `rbk list boards`, or its folder.", show_default=False)
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="Title of the column, where several count images of others.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the record; by default that of the row's.", show_default=False),
    ] = None,
    run_code: RunCode = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Check adversarial images, show them to the row's model once, and write a record that lowers the row's number.

    The images lie in [0, 1] and within the norm and eps of the column around the clean samples. A board counts them in
    columns with imported = true, and names who found them. The command writes nothing if they break nothing new.
    """
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.metrics import PERCENT
    from robustbench_kpca.protocols.presets import board_folder
    from robustbench_kpca.records.record import SUFFIX
    from robustbench_kpca.report.consistency import load_consistent
    from robustbench_kpca.report.matching import load_board
    from robustbench_kpca.verification.breaks import Target, record_break, target_on
    from robustbench_kpca.verification.stated import Conditions

    if row.endswith(SUFFIX):
        refuse_others([name for name, given in (("board", board), ("column", column)) if given], "a record", ())
        ours = load_consistent(Path(row))
        target, folder = Target(ours.spec.protocol.name, [ours]), Path(row).parent
    elif board is not None:
        target, folder = target_on(load_board(board), row, column), board_folder(board) / "records"
    else:
        raise BadInputError(f"row '{row}' of no board", expected="--board BOARD", fix="see: rbk list boards")
    how = Conditions(RunOptions(device=device, workers=0), run_code=run_code)
    folder = out or folder
    record, before, after = record_break(images, target, by=by, method=method, out=folder, how=how)
    numbers = " -> ".join(PERCENT.text(count / record.spec.data.n) for count in (before, after))
    images_broken = _console.count(before - after, "image")
    _console.say(f"{record.spec.model.name}  {target.title} {numbers}  {images_broken} broken by {by}")
    _console.note(str(folder / f"{record.spec.stem()}{SUFFIX}"), quiet=quiet)
