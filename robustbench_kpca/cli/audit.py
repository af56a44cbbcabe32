"""`rbk audit`: check whether attacks on a model are effective, so that its robust accuracy can be trusted."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._evaluating import model_settings, require_names, usable_device


def audit(
    model: Annotated[str, typer.Argument(help=f"Model: {_options.MODEL}.")],
    data: _options.Data = None,
    split: _options.SplitOfTask = None,
    size: _options.Size = None,
    crop: _options.Crop = None,
    classes: _options.Classes = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", "-p", help="Attack protocol whose eps the audit uses."),
    ] = None,
    eps: Annotated[
        str | None,
        typer.Option(
            help="Radius of the L-infinity ball, in pixel values of [0, 1]; by default that of --protocol, else 8/255.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of images, evenly spread over the set; by default 64, or 16 for images with masks.",
            show_default=False,
        ),
    ] = None,
    checkpoint: _options.Checkpoint = None,
    name: Annotated[str | None, typer.Option(help="Name of the model in the audit; by default MODEL.")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="model.KEY=VALUE: set a model option. Repeatable.")] = [],  # noqa: B006 (typer reads the default)
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the checks that need no long attack (docs/trust.md).")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the audit; by default it is not saved.")
    ] = None,
    seed: _options.Seed = 0,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="Batch size of the model, in images. By default 64; for images with masks at most the number of "
            "images, and fewer if the logits of a batch would exceed 256 MiB.",
        ),
    ] = None,
    device: _options.Device = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
) -> int:
    """Ask whether attacks on a model can be believed; exit 1 if a check raises a flag.

    Each check knows the answer of an honest model. An audit without flags is no proof (docs/trust.md).
    """
    require_names(models=[model], protocols=[] if protocol is None else [protocol], data=[data])  # before torch loads
    from robustbench_kpca._core.files import require_writable
    from robustbench_kpca.audit.budgets import eps_for
    from robustbench_kpca.audit.run import audit as run_audit
    from robustbench_kpca.audit.run import shown
    from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest, how_shown

    options = model_settings(set_)
    if protocol is not None and eps is not None:
        raise BadInputError(f"--eps {eps} and --protocol {protocol}", expected="one of them")
    radius = eps_for(protocol) if eps is None else eps
    request = ModelRequest.of(model, checkpoint, name=name, options=options)
    loaded = request.load()
    samples = DataRequest(data, split, size=size, crop=crop, classes=classes).of([model]).load_for(loaded)
    _console.note(how_shown(samples, loaded), quiet=quiet or json)
    if out is not None:
        require_writable(out)
    with _console.screen(quiet=quiet or json) as terminal:
        ask = partial(
            run_audit, loaded, samples, eps=radius, limit=limit, seed=seed, batch_size=batch_size,
            device=usable_device(device), name=request.label, out=out, level="quick" if quick else "full",
        )  # fmt: skip
        done = shown(terminal, request.label, ask)
    if json:
        _console.show_json(done.model_dump(mode="json"))
    else:
        rows = [(check.name, "FLAG" if check.flag else "", check.saw) for check in done.checks]
        _console.show_table("", ("Check", "", "What was seen"), rows)
        for check in done.flags:
            _console.note(f"{check.name}: {check.why}", quiet=quiet)
    return 1 if done.flags else 0
