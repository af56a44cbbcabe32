"""`rbk records import-images`: a record of adversarial images that somebody else found."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Device, Quiet, RunCode


def import_images(
    file: Annotated[Path, typer.Argument(help="Images: .npy, .safetensors or torch.save; one float32 tensor.")],
    record: Annotated[
        Path, typer.Option(help="Record of our own attack, which names model, samples and perturbation set.")
    ],
    by: Annotated[str, typer.Option(help="Who found the images.")],
    method: Annotated[str, typer.Option(help="How they were found, in words.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the record.")],
    run_code: RunCode = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Check images that others found, show them to the model once, and write a record that names who found them.

    The images have the shape and order of the samples of --record and values in [0, 1]. Where the attack failed, give
    the clean image. A board counts the images in columns with imported = true, beside its own attack.
    """
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.metrics import PERCENT
    from robustbench_kpca.records.record import SUFFIX
    from robustbench_kpca.report.consistency import load_consistent
    from robustbench_kpca.verification.imported import import_images as import_checked
    from robustbench_kpca.verification.stated import Conditions

    our_record = load_consistent(record)
    how = Conditions(RunOptions(device=device, workers=0), run_code=run_code)
    new_record = import_checked(file, our_record, by=by, method=method, out=out, how=how)
    both = [PERCENT.text(each.metrics["robust_accuracy"].value) for each in (our_record, new_record)]
    _console.say(f"{new_record.spec.model.name}  {our_record.spec.protocol.name} {both[0]}  images by {by} {both[1]}")
    _console.note(str(out / f"{new_record.spec.stem()}{SUFFIX}"), quiet=quiet)
