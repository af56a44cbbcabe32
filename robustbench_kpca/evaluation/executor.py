"""Execute a plan: run its steps one after the other, in this process or with the help of others."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from robustbench_kpca.audit.budgets import eps_of
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.request import View
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.backend import Backend, IncompleteError
from robustbench_kpca.evaluation.command import Command
from robustbench_kpca.evaluation.engines import engine_for
from robustbench_kpca.evaluation.measure import audit_for, measure_attack, measure_each
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.plan import AttackModel, AuditModel, Measure, Plan
from robustbench_kpca.evaluation.requests import how_shown
from robustbench_kpca.evaluation.trial import NamedModel, require_gradients
from robustbench_kpca.files import require_writable
from robustbench_kpca.inference.acceleration import accelerated
from robustbench_kpca.models.source import class_names_of, is_differentiable, stated_classes, stated_view
from robustbench_kpca.progress import Progress
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named


@runtime_checkable
class Reporter(Protocol):
    """Callbacks that show the progress of a plan to the user."""

    def start(self, title: str) -> Progress:
        """Begin a progress bar; return the function to call with (done, total)."""
        ...

    def announce(self, text: str) -> None:
        """Show a remark, such as what comes next and what it will cost."""
        ...

    def audited(self, audit: Audit, *, kept: bool) -> None:
        """Show a new audit, or a stored one that was kept."""
        ...

    def recorded(self, record: Record) -> None:
        """Show a new or stored record."""
        ...


Executor = Callable[[Plan, Reporter], list[Record]]
"""Executes a plan; returns the records in the order of `Plan.order`."""


def run_serially(plan: Plan, reporter: Reporter) -> list[Record]:
    """Execute a plan in this process.

    Finished records are not computed again. Models and data are loaded before the first step.

    Raises:
        BadInputError: a model or data cannot be loaded, or they are incompatible.
        EvaluationError: an evaluation could not finish; finished records are kept.

    """
    return _execute(plan, reporter, None)


def run_with_workers(plan: Plan, reporter: Reporter) -> list[Record]:
    """Execute a plan with the engine that its options name; the outcomes are those of `run_serially` with one thread.

    Models are loaded, identified and audited in this process; samples are evaluated in the others.

    Raises:
        BadInputError: as in `run_serially`; or a model or data that cannot be sent to another process.
        EvaluationError: an evaluation could not finish; the other steps are done all the same, and what is finished is
            kept.

    """
    with engine_for(plan.options) as backend:
        return _execute(plan, reporter, backend)


def executor_for(options: RunOptions) -> Executor:
    """Return the executor that the options ask for."""
    return run_serially if options.engine[0] == "serial" else run_with_workers


def _execute(plan: Plan, reporter: Reporter, backend: Backend | None) -> list[Record]:
    models = [NamedModel(request.load(), request.label, request.source, request) for request in plan.models]
    if plan.options.out is not None:
        require_writable(plan.options.out)
    for step in plan.steps:
        if isinstance(step, AttackModel):
            for _, scenario, *_ in step.budgets:
                require_gradients(models[step.model].model, scenario)
    data = _load_data(plan, models, reporter)
    for named, samples in zip(models, data, strict=True):
        _say(named, samples, reporter)
    with accelerated([named.model for named in models], plan.options.acceleration):
        return _run(plan, models, data, reporter, backend)


def _run(
    plan: Plan, models: list[NamedModel], data: list[Dataset], reporter: Reporter, backend: Backend | None
) -> list[Record]:
    audits: dict[tuple[int, str | float], Audit] = {}
    records: dict[tuple[int, str], list[Record]] = {}
    incomplete: list[IncompleteError] = []
    for step in plan.steps:
        match step:
            case Measure():
                made = _measure(step, plan, models, data, reporter, backend)
            case AuditModel(number, _, eps):
                if is_differentiable(models[number].model):
                    audits[number, eps] = _audit(step, plan, models[number], data[number], reporter)
                continue
            case AttackModel(number):
                own = {eps: audit for (other, eps), audit in audits.items() if other == number}
                made = _attack(step, plan, models[number], data[number], own, reporter, backend)
        for number, found in made:
            if isinstance(found, IncompleteError):
                reporter.announce(str(found))
                incomplete.append(found)
            else:
                records.setdefault((number, step.protocol), []).append(found)
                reporter.recorded(found)
    if incomplete:
        raise IncompleteError.of(incomplete)
    return [record for place in plan.order for record in records[place]]


def _say(named: NamedModel, data: Dataset, reporter: Reporter) -> None:
    """Say how pictures are resized, and how classes are matched unless they are just counted alike."""
    if shown := how_shown(data):
        reporter.announce(f"{named.name}: {shown}")
    classes = stated_classes(named.model)
    if classes is not None:
        how = ""
        with contextlib.suppress(BadInputError):  # refused when the first batch is shown, after what else may be wrong
            _, how = task_named(data.task).compute.match_classes(data, classes, class_names_of(named.model))
        if how and not how.endswith("by number"):
            reporter.announce(f"{named.name}: {how}")


def _load_data(plan: Plan, models: list[NamedModel], reporter: Reporter) -> list[Dataset]:
    """Load the samples as each model takes them; models that take them alike share them."""
    views: dict[View | None, Dataset] = {}
    known: dict[str, Dataset] = {}
    found = []
    for named in models:
        view = stated_view(named.model)
        if view not in views:
            loaded = plan.data.load_for(named.model, reporter.start(f"decoding {plan.data.data}")).in_order()
            views[view] = known.setdefault(loaded.digest(), loaded)
            if loaded.skipped:
                reporter.announce(f"{loaded.name}: {len(loaded.skipped)} images cannot be used and were skipped")
        found.append(views[view])
    return found


def _measure(
    step: Measure,
    plan: Plan,
    models: list[NamedModel],
    data: list[Dataset],
    reporter: Reporter,
    backend: Backend | None,
) -> Iterator[tuple[int, Record | IncompleteError]]:
    options = plan.options if step.uses_frost_folder else replace(plan.options, frost_folder=None)
    groups: dict[int, list[int]] = {}
    for number in step.models:
        groups.setdefault(id(data[number]), []).append(number)
    for numbers in groups.values():
        shown = models[numbers[0]].name if len(numbers) == 1 else f"{len(numbers)} models"
        made = measure_each(
            [models[number] for number in numbers], data[numbers[0]], step.label, step.scenario, options,
            reporter.start(f"{shown}  {step.protocol}"),
            [Command(plan.models[number], plan.data, step.protocol, step.overrides, options) for number in numbers],
            backend, reporter.announce,
        )  # fmt: skip
        yield from zip(numbers, made, strict=True)


def _audit(step: AuditModel, plan: Plan, named: NamedModel, data: Dataset, reporter: Reporter) -> Audit:
    announced: list[str] = []

    def announce(text: str) -> None:
        announced.append(text)
        reporter.announce(f"{named.name}  {text}")

    progress = reporter.start(f"{named.name}  audit")
    audit = audit_for(named, data, plan.options, step.level, step.eps, announce, progress)
    reporter.audited(audit, kept=not announced)
    return audit


def _attack(
    step: AttackModel,
    plan: Plan,
    named: NamedModel,
    data: Dataset,
    audits: Mapping[str | float, Audit],
    reporter: Reporter,
    backend: Backend | None,
) -> Iterator[tuple[int, Record | IncompleteError]]:
    """Attack at each budget. After one that is incomplete, those that would start from its record are left out.

    `audits` are those of the model, by eps.
    """
    record: Record | None = None
    failed = False
    for label, scenario, overrides in step.budgets:
        audit = audits.get(eps_of(scenario))
        level = None if audit is None else audit.plan.level
        if failed and scenario.below:
            continue
        below = scenario.smaller().digest() if scenario.below else ""
        try:
            record = measure_attack(
                named, data, label, scenario, plan.options, audit=audit,
                smaller=record if record and record.spec.protocol.digest == below else None,
                progress=reporter.start(f"{named.name}  {step.protocol}"),
                command=Command(plan.models[step.model], plan.data, step.protocol, overrides, plan.options, level),
                backend=backend, announce=reporter.announce,
            )  # fmt: skip
        except IncompleteError as error:
            failed = True
            yield step.model, error
        else:
            yield step.model, record
