"""`rbk sweep`: evaluate a trained model with every combination of some of its options."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._evaluating import reporting, require_names, several, usable_device
from robustbench_kpca.cli._options import with_run_options

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.options import RunOptions

_OF_RUN = ("out", "allow", "fresh", "seed", "batch_size", "processes", "executor", "device")


@with_run_options(*_OF_RUN, out=Path("runs"))
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
    protocol: _options.Protocols,
    data: _options.Data = None,
    split: _options.Split = None,
    size: _options.Size = None,
    crop: _options.Crop = None,
    checkpoint: _options.Checkpoint = None,
    limit: _options.Limit = None,
    audited: _options.Audited = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    *,
    options: "RunOptions",
) -> None:
    """Evaluate a trained model with every combination of some of its options, without training it again.

    Every combination has ordinary records, so that an interrupted sweep is resumed by the same command.
    """
    protocols = several(protocol)
    require_names(models=[model], protocols=protocols, data=[data])
    from robustbench_kpca.evaluation.command import option_words
    from robustbench_kpca.evaluation.execute import execute
    from robustbench_kpca.evaluation.plan import Job, make_plan
    from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
    from robustbench_kpca.report.sweep import combinations, frame, write_sweep

    chosen = combinations(set_)
    request = DataRequest(data, split, limit, size=size, crop=crop).of([model])
    jobs = [Job(ModelRequest.of(model, checkpoint, options=own), protocols) for own in chosen]
    asked, options = options, replace(options, device=usable_device(options.device))
    plan = make_plan(jobs, request, options, audit=audited != "none" and (audited or True))
    with reporting(quiet=quiet or json) as reporter:
        records = execute(plan, reporter)
    measured = list(zip([own for own in chosen for _ in protocols], records, strict=True))
    assignments = [word for assignment in set_ for word in ("--set", assignment)]
    words = ["rbk", "sweep", "-m", model, *assignments, "-p", ",".join(protocols)]
    words += ["--data", str(request.data), *([] if split is None else ["--split", split]), *option_words(asked)]
    words += [] if checkpoint is None else ["--checkpoint", checkpoint]
    words += [] if size is None else ["--size", str(size)]
    words += [] if crop is None else ["--crop", str(crop)]
    words += [] if limit is None else ["--limit", str(limit)]
    words += [] if audited is None else ["--audit", audited]
    pages = write_sweep(measured, options.out or Path(), shlex.join(words))
    if json:
        _console.show_json([{"options": own, **record.model_dump(mode="json")} for own, record in measured])
        return
    _console.show_frame("", frame(measured))
    for page in pages:
        _console.say(str(page))
