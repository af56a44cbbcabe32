"""`rbk eval`: evaluate models under protocols and write one record each."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._evaluating import reporting, require_names, several, show_plan, split_settings, usable_device
from robustbench_kpca.cli._options import with_run_options

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.records.record import Record


@with_run_options(out=Path("runs"))
def evaluate(
    model: Annotated[list[str], typer.Option("--model", "-m", help=f"Model: {_options.MODEL}. {_options.SEVERAL}")],
    protocol: _options.Protocols,
    data: _options.Data = None,
    split: _options.SplitOfTask = None,
    checkpoint: _options.Checkpoint = None,
    name: Annotated[str | None, typer.Option(help="Name of a single model in its records; by default --model.")] = None,
    set_: _options.Settings = [],  # noqa: B006 (typer reads the default)
    curve: Annotated[
        str | None,
        typer.Option(
            help="Values of eps for the attacks, such as 1/255,2/255,4/255, with one record each. An image broken at "
            "one eps counts as broken at every larger one."
        ),
    ] = None,
    independent: Annotated[
        bool,
        typer.Option(
            "--independent", help="With --curve: attack at each eps alone, as in tables of several published numbers."
        ),
    ] = False,
    limit: _options.Limit = None,
    against: Annotated[
        str | None, typer.Option(help="Data set of unknown classes, for out-of-distribution detection protocols.")
    ] = None,
    size: _options.Size = None,
    crop: _options.Crop = None,
    classes: _options.Classes = None,
    audited: _options.Audited = None,
    planned: Annotated[
        bool,
        typer.Option("--plan", help="Evaluate nothing; print the most passes that this takes, and an estimated time."),
    ] = False,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    *,
    options: "RunOptions",
) -> None:
    """Evaluate models under protocols; write one record for each model and protocol.

    The command uses finished records again and goes on where an evaluation was interrupted. It saves audits in the same
    folder. --executor uses every GPU or several machines (docs/run_at_scale.md).
    """
    from robustbench_kpca._core.strict import parse_assignments, parse_fraction

    models, protocols = several(model), several(protocol)
    model_options, overrides = split_settings(parse_assignments(set_))
    if len(models) > 1 and (checkpoint is not None or name is not None):
        raise BadInputError("--checkpoint or --name with several models", expected="one --model")
    budgets = [] if curve is None else [part.strip() for part in curve.split(",")]
    if len({parse_fraction(part) for part in budgets}) != len(budgets) or (budgets and "eps" in overrides):
        raise BadInputError(f"--curve {curve}", expected="different values of eps, and no --set eps=… in addition")
    if independent and not budgets:
        raise BadInputError("--independent without --curve", fix="add --curve 1/255,2/255")
    from robustbench_kpca.protocols.loading import is_attack

    curves = [each for each in protocols if budgets and is_attack(each)]
    require_names(protocols=curves, overrides=overrides | {"eps": next(iter(budgets), None)})
    without_curve = [each for each in protocols if each not in curves]
    require_names(models=models, protocols=without_curve, overrides=overrides, data=[data, against])
    from robustbench_kpca.evaluation.execute import execute
    from robustbench_kpca.evaluation.plan import Job, make_plan
    from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
    from robustbench_kpca.evaluation.shard_run import WaitingError

    jobs = [
        Job(
            ModelRequest.of(each, checkpoint, name=name, options=model_options),
            protocols,
            overrides,
            budgets,
            independent,
        )
        for each in models
    ]
    options = replace(options, device=usable_device(options.device))
    request = DataRequest(data, split, limit, against)
    request = replace(request, size=size, crop=crop, classes=classes)
    plan = make_plan(jobs, request, options, audit=audited != "none" and (audited or True))
    if planned:
        show_plan([plan], quiet=quiet, json=json)
        return
    try:
        with reporting(quiet=quiet or json) as reporter:
            records = execute(plan, reporter)
    except WaitingError:  # the message was shown already, and the last part will show the records
        return
    if json:
        _console.show_json([record.model_dump(mode="json") for record in records])
        return
    _show(records)
    _console.note(f"{_console.count(len(records), 'record')} in {options.out}", quiet=quiet)


def _show(records: "list[Record]") -> None:
    """Print one row per record and metric; the header of the values is their unit if all have the same."""
    from robustbench_kpca.metrics import common_unit, metric_for, telling

    values = [
        (record, metric_for(name), record.metrics[name])
        for record in records
        for name in telling(record.metrics, record.spec.data.classes)
    ]
    unit = common_unit(metric.unit for _, metric, _ in values)
    rows = [
        (
            record.spec.model.name,
            record.spec.protocol.name,
            metric.name,
            metric.unit.number(value.value) if unit else metric.unit.text(value.value),
            metric.unit.interval(value.low, value.high),
            value.n,
            "–" if (chance := _chance(record, metric.name)) is None else metric.unit.number(chance),
        )
        for record, metric, value in values
    ]
    heading = unit.symbol if unit and unit.symbol else "Value"
    _console.show_table("", ("Model", "Protocol", "Metric", heading, "95 % interval", "n", "chance"), rows)


def _chance(record: "Record", name: str) -> float | None:
    from robustbench_kpca.tasks import task_named

    return task_named(record.spec.data.task).pages.chance(record, name)
