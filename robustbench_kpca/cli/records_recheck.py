"""`rbk records recheck`: repeat a record's verdicts on the adversarial images that were kept, by forward passes."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Checkpoint, Device, Ema, Quiet, ResizePositions, RunCode

if TYPE_CHECKING:
    from torch import nn

    from robustbench_kpca.records.record import Record


def recheck(
    records: Annotated[
        list[Path], typer.Argument(help="Records (*.record.json), or folders with records, of one model.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model, as in `rbk eval`; by default the name in the record.")
    ] = None,
    checkpoint: Checkpoint = None,
    ema: Ema = False,
    resize_positions: ResizePositions = False,
    run_code: RunCode = False,
    device: Device = None,
    quiet: Quiet = False,
) -> int:
    """Show the kept adversarial images to the model again; exit 1 if a prediction or a perturbation differs.

    Records without images are passed over: rbk eval ... --keep-adversarial 100 keeps some.
    """
    from robustbench_kpca.errors import BadInputError
    from robustbench_kpca.evaluation.recheck import recheck as ask
    from robustbench_kpca.records.images import load_images
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.consistency import load_consistent

    paths = [path for place in records for path in find_records(place)]
    loaded = [(path.parent, one) for path in paths if (one := load_consistent(path)).images_file is not None]
    if not loaded:
        raise BadInputError("no record with images", fix="evaluate with --keep-adversarial N")
    odd = 0
    for folder, record in loaded:
        assert record.images_file is not None
        network = _asked(record, model, checkpoint, ema=ema, resize_positions=resize_positions, run_code=run_code)
        found = ask(record, load_images(folder, record.images_file), network, device)
        odd += len(found.differences)
        for line in found.differences:
            _console.say(line)
        _console.note(
            f"{record.spec.stem()}: {found.samples} samples, {len(found.differences)} differences", quiet=quiet
        )
    return 1 if odd else 0


def _asked(
    record: "Record", model: str | None, checkpoint: str | None, *, ema: bool, resize_positions: bool, run_code: bool
) -> "nn.Module":
    """Load the model that is named; by default that of the record's command, else of the record's name."""
    from robustbench_kpca.evaluation.command import START, parse
    from robustbench_kpca.evaluation.requests import ModelRequest
    from robustbench_kpca.evaluation.stated import load_stated
    from robustbench_kpca.models.loading import load_model

    if model is not None:
        return load_model(model, checkpoint, ema=ema, resize_positions=resize_positions)
    name, has_command = record.spec.model.name, record.command[:2] == START
    request = parse(record.command).model if has_command else ModelRequest(name)
    request = replace(request, ema=ema or request.ema, resize_positions=resize_positions or request.resize_positions)
    return load_stated(name, request, "the record", checkpoint=checkpoint, run_code=run_code)
