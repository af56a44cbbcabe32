"""`rbk sweep`: evaluate a trained model with every combination of some of its options."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._evaluating import best_device, carry_out
from robustbench_kpca.cli._names import require_names, several
from robustbench_kpca.cli._options import (
    SEVERAL,
    Audited,
    AuditLevel,
    Checkpoint,
    Crop,
    Data,
    Device,
    Ema,
    GridWorkers,
    Json,
    Limit,
    Presets,
    Quiet,
    Seed,
    Size,
    Split,
    Untrained,
)


def sweep(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Model: a name of `rbk list models`, or module.path:factory.")
    ],
    set_: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="KEY=V1,V2,...: a model option and its values, such as lam=0.5,1,2,4. Repeatable: all combinations.",
        ),
    ],
    protocol: Annotated[
        list[str],
        typer.Option(
            "--protocol",
            "-p",
            help=f"Protocol: a name of `rbk list protocols`, or a TOML file. {SEVERAL}",
        ),
    ],
    data: Data = None,
    split: Split = None,
    size: Size = None,
    crop: Crop = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for records, sweep.md and sweep.csv.")] = Path(
        "runs"
    ),
    checkpoint: Checkpoint = None,
    ema: Ema = False,
    untrained: Untrained = False,
    limit: Limit = None,
    audited: Audited = AuditLevel.full,
    seed: Seed = 0,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Batch size of the model, in images; by default 64.", show_default=False)
    ] = None,
    workers: GridWorkers = None,
    device: Device = None,
    presets: Presets = None,  # noqa: ARG001 (set by its callback)
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a trained model with every combination of some of its options, without training it again.

    Every combination has ordinary records, so that an interrupted sweep is resumed by the same command.
    """
    protocols = several(protocol)
    require_names(models=[model], protocols=protocols, data=[data])
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.evaluation.plan import Job, make_plan
    from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
    from robustbench_kpca.report.sweep import combinations, frame, write_sweep

    chosen = combinations(set_)
    request = DataRequest(data, split, limit, size=size, crop=crop).of([model])
    jobs = [
        Job(ModelRequest(model, checkpoint, ema, untrained=untrained, options=options), protocols) for options in chosen
    ]
    how = RunOptions(seed, batch_size, workers, device or best_device(), out)
    records = carry_out(make_plan(jobs, request, how, audit=audited.level), quiet=quiet or json)
    measured = list(zip([options for options in chosen for _ in protocols], records, strict=True))
    words = ["rbk", "sweep", "-m", model, *(word for one in set_ for word in ("--set", one)), "-p", ",".join(protocols)]
    words += ["--data", str(request.data), *([] if split is None else ["--split", split]), "--seed", str(seed)]
    words += [] if checkpoint is None else ["--checkpoint", checkpoint, *(["--ema"] if ema else [])]
    words += ["--untrained"] if untrained else []
    words += [] if size is None else ["--size", str(size)]
    words += [] if crop is None else ["--crop", str(crop)]
    words += [] if limit is None else ["--limit", str(limit)]
    words += [] if audited is AuditLevel.full else ["--audit", audited.value]
    words += [] if batch_size is None else ["--batch-size", str(batch_size)]
    pages = write_sweep(measured, out, shlex.join(words))
    if json:
        _console.show_json([{"options": options, **record.model_dump(mode="json")} for options, record in measured])
        return
    _console.show_frame("", frame(measured))
    for page in pages:
        _console.say(str(page))
