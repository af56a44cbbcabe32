"""`rbk verify`: compare a native attack with the same attack of another library."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._evaluating import best_device, split_settings
from robustbench_kpca.cli._options import (
    Allow,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    Ema,
    Json,
    Limit,
    Presets,
    Quiet,
    ResizePositions,
    Seed,
    Settings,
    Split,
    Untrained,
    Workers,
)

if TYPE_CHECKING:
    from robustbench_kpca.records.record import Record
    from robustbench_kpca.verification.run import Agreement


def verify(
    model: Annotated[str, typer.Argument(help="Model: a name of `rbk list models`, timm:NAME or module.path:factory.")],
    protocol: Annotated[
        str, typer.Option("--protocol", "-p", help="Attack protocol: a name of `rbk list protocols`, or a TOML file.")
    ],
    reference: Annotated[
        str | None,
        typer.Option(
            help="Reference attack LIBRARY:NAME of torchattacks, pyautoattack or foolbox; by default its equivalent."
        ),
    ] = None,
    data: Data = "digits",
    split: Split = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for both records; by default none.")] = None,
    checkpoint: Checkpoint = None,
    ema: Ema = False,
    resize_positions: ResizePositions = False,
    name: Annotated[str | None, typer.Option(help="Name of the model in the records; by default MODEL.")] = None,
    set_: Settings = [],  # noqa: B006 (typer reads the default)
    untrained: Untrained = False,
    limit: Limit = None,
    allow: Allow = [],  # noqa: B006 (typer reads the default)
    fresh: Annotated[bool, typer.Option("--fresh", help="Evaluate again even if records exist.")] = False,
    seed: Seed = 0,
    batch_size: BatchSize = 64,
    workers: Workers = 0,
    device: Device = None,
    presets: Presets = None,  # noqa: ARG001 (set by its callback)
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run a native attack and the same attack of another library; exit 1 if the native attack is weaker.

    Weaker: its robust accuracy is more than 0.5 percentage points higher. Needs the extra `reference`.
    """
    from robustbench_kpca.data.load import load_data
    from robustbench_kpca.evaluation.requests import ModelRequest
    from robustbench_kpca.models.loading import input_view
    from robustbench_kpca.strict import parse_assignments
    from robustbench_kpca.verification.run import verify as compare

    options, overrides = split_settings(parse_assignments(set_))
    request = ModelRequest(model, checkpoint, ema, resize_positions, untrained, name, options)
    network = request.load()
    samples = load_data(data, split, limit, view=input_view(network))
    with _console.progress(quiet=quiet or json) as start:
        found = compare(
            network, samples, protocol=protocol, reference=reference, out=out, overrides=overrides, seed=seed,
            batch_size=batch_size, workers=workers, device=device or best_device(),
            name=request.label, source=request.source, fresh=fresh, allow=allow, progress=start(model),
        )  # fmt: skip
    if json:
        _console.show_json(found.as_dict())
    else:
        _show(found)
    return 0 if found.as_strong else 1


def _show(found: "Agreement") -> None:
    header = ("Program", "Robust %", "95 % interval", "Forwards", "Backwards", "Seconds")
    _console.show_table("", header, [_row("native", found.native), _row(_programs(found.reference), found.reference)])
    _console.out.print()
    rows = [
        ("broken by native", found.both, found.only_native),
        ("not broken by native", found.only_reference, found.neither),
    ]
    _console.show_table("", ("Images", "broken by reference", "not broken by reference"), rows)
    _console.out.print()
    native, other = (record.metrics["robust_accuracy"].value for record in (found.native, found.reference))
    result = "as strong as the reference" if found.as_strong else "WEAKER than the reference"
    _console.out.print(
        f"{result}: robust accuracy {100 * native:.1f} % against {100 * other:.1f} %, "
        f"McNemar's exact p = {found.p_value:.2g}",
        markup=False,
    )


def _row(who: str, record: "Record") -> tuple[Any, ...]:
    estimate, passes = record.metrics["robust_accuracy"], record.passes
    interval = f"[{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
    return who, f"{100 * estimate.value:.1f}", interval, passes.forwards, passes.backwards, f"{record.seconds:.1f}"


def _programs(record: "Record") -> str:
    return ", ".join(dict.fromkeys(stage["attack"] for stage in record.spec.protocol.resolved["stage"]))
