"""`rbk audit`: whether a model's robust accuracy can be believed."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._evaluating import best_device, say_flags, split_settings
from robustbench_kpca.cli._options import (
    Checkpoint,
    Data,
    Device,
    Ema,
    Json,
    Presets,
    Quiet,
    ResizePositions,
    Seed,
    Untrained,
)


def audit(
    model: Annotated[str, typer.Argument(help="A model of `rbk list models`, timm:NAME or module.path:factory.")],
    data: Data = "digits",
    split: Annotated[
        str | None,
        typer.Option(help="Part of a named data set; by default test, and val of scenes.", show_default=False),
    ] = None,
    eps: Annotated[str, typer.Option(help="Radius of the L-infinity ball.")] = "8/255",
    images: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many images, spread over the set; by default 64, and 16 scenes.", show_default=False
        ),
    ] = None,
    sibling: Annotated[
        str | None, typer.Option(help="A model of the same task; its adversarial images are shown to this one.")
    ] = None,
    checkpoint: Checkpoint = None,
    ema: Ema = False,
    resize_positions: ResizePositions = False,
    name: Annotated[str | None, typer.Option(help="Name of the model in the audit.")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="model.KEY=VALUE. Repeatable.")] = [],  # noqa: B006
    untrained: Untrained = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to keep the audit in.")] = None,
    seed: Seed = 0,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="The one size at which the model runs. By default 64, and of scenes no more than are looked at, fewer "
            "where the logits of their pixels would take much memory.",
        ),
    ] = None,
    device: Device = None,
    presets: Presets = None,  # noqa: ARG001 (set by its callback)
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Ask a model what an honestly evaluated one answers in a known way; exit 1 if an answer is flagged."""
    from robustbench_kpca.audit.run import audit as ask
    from robustbench_kpca.errors import BadInputError
    from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
    from robustbench_kpca.files import require_writable
    from robustbench_kpca.models.loading import input_view, load_model
    from robustbench_kpca.strict import parse_assignments

    options, others = split_settings(parse_assignments(set_))
    if others:
        raise BadInputError(f"'{next(iter(others))}' cannot be set", expected="model.KEY=VALUE")
    request = ModelRequest(model, checkpoint, ema, resize_positions, untrained, name, options)
    loaded = request.load()
    samples = DataRequest(data, split).load(input_view(loaded))
    if out is not None:
        require_writable(out)
    done = ask(
        loaded, samples, eps=eps, limit=images, seed=seed, batch_size=batch_size,
        device=device or best_device(), name=request.label,
        sibling=None if sibling is None else load_model(sibling), sibling_name=sibling, out=out,
    )  # fmt: skip
    if json:
        _console.show_json(done.model_dump(mode="json"))
    else:
        rows = [(check.name, "FLAG" if check.flag else "", check.saw) for check in done.checks]
        _console.show_table("", ("Check", "", "What was seen"), rows)
        for check in done.flags:
            _console.note(f"{check.name}: {check.why}", quiet=quiet)
        say_flags(done, quiet=quiet)
    return 1 if done.flags else 0
