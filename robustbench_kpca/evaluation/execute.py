"""Execute a plan, the one way in which records are made, or foretell what it will take at most, before it runs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._core.files import require_writable
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.attack_loop.passes import Passes, most_passes
from robustbench_kpca._engine.inference.acceleration import accelerated
from robustbench_kpca._engine.inference.runner import device_for
from robustbench_kpca._engine.inference.work import DEVICES, MOST, Rates, Work, larger, work_of
from robustbench_kpca.audit.budgets import eps_of
from robustbench_kpca.audit.run import audit as audit_model
from robustbench_kpca.audit.run import shown
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.request import View
from robustbench_kpca.evaluation.command import Command, call
from robustbench_kpca.evaluation.engines import Result, engine_for, make_records
from robustbench_kpca.evaluation.evaluation import Evaluation, batch_on, require_fit, require_gradients, runner_for
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.plan import AuditModel, Evaluate, Plan
from robustbench_kpca.evaluation.reporter import Reporter
from robustbench_kpca.evaluation.requests import ModelRequest, NamedModel, how_shown
from robustbench_kpca.evaluation.shard_run import IncompleteError
from robustbench_kpca.evaluation.sharded import Engine
from robustbench_kpca.models.source import class_names_of, is_differentiable, stated_classes
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.audit_versions import default_level
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named


def execute(
    plan: Plan, reporter: Reporter, engine_for: Callable[[RunOptions], AbstractContextManager[Engine]] = engine_for
) -> list[Record]:
    """Execute a plan; return the records in the order of `Plan.order`.

    Models and data are loaded before the first step; models are identified and audited in this process. Finished
    records are not computed again. Every engine makes the same outcomes. A record that is incomplete, since other
    processes failed at some of its samples, stops no other one.

    Raises:
        BadInputError: a model or data cannot be loaded, or they are incompatible, or cannot be sent to another process.
        EvaluationError: an evaluation could not finish; what is finished is kept.
    """
    with engine_for(plan.options) as engine:
        models = [model.named() for model in plan.models]
        _require_possible(plan, models)
        run = _Run(plan, models, load_data(plan, models, reporter), reporter, together=engine.shares_samples)
        with accelerated([named.model for named in models], plan.options.compile, tf32=plan.options.tf32):
            for step, group in run.groups():
                smaller = run.smaller(group[0][0], step)
                progress = run.progress(step, group)
                run.take(step, group, make_records([each for _, each in group], engine, smaller, progress))
    return run.every()


_Group = Sequence[tuple[int, Evaluation]]
"""Positions in the plan of models that are shown the same samples under one protocol, and their evaluations."""


@dataclass
class _Run:
    """A plan that is carried out, and what became of its steps.

    Attributes:
        plan: the plan.
        models: its models, loaded.
        data: the samples of each model.
        reporter: shows what happens.
        together: whether models under one protocol are shown their samples together.
        audits: by model and eps.
        records: by model and protocol; of a curve, in the order of its budgets.
        incomplete: why records are missing.
        failed: (model, protocol) of these.
    """

    plan: Plan
    models: Sequence[NamedModel]
    data: Sequence[Dataset]
    reporter: Reporter
    together: bool
    audits: dict[tuple[int, str | float], Audit] = field(default_factory=dict)
    records: dict[tuple[int, str], list[Record]] = field(default_factory=dict)
    incomplete: list[IncompleteError] = field(default_factory=list)
    failed: set[tuple[int, str]] = field(default_factory=set)

    def groups(self) -> Iterator[tuple[Evaluate, _Group]]:
        """Audit models and begin evaluations, step by step; yield those that are to be made together."""
        for step in self.plan.steps:
            if isinstance(step, AuditModel):
                self._audit(step)
            elif not (self.failed & {(number, step.protocol) for number in step.models} and step.goes_on):
                yield from self._evaluate(step)

    def take(self, step: Evaluate, group: _Group, results: Sequence[Result]) -> None:
        """Record the results of a group.

        Raises:
            EvaluationError: a model changed while it was evaluated; the records of the others are written.
        """
        changed = []
        for (number, _), result in zip(group, results, strict=True):
            if isinstance(result, Record):
                self._recorded(number, step, result)
            elif isinstance(result, IncompleteError):
                self.reporter.announce(str(result))
                self.incomplete.append(result)
                self.failed.add((number, step.protocol))
            else:
                changed.append((self.models[number].label, result))
        for label, error in changed:
            raise error if len(results) == 1 else EvaluationError(f"model '{label}': {error}")

    def every(self) -> list[Record]:
        """Return all records.

        Raises:
            IncompleteError: some are missing.
        """
        if self.incomplete:
            raise IncompleteError.of(self.incomplete)
        return [record for place in self.plan.order for record in self.records[place]]

    def _recorded(self, number: int, step: Evaluate, record: Record) -> None:
        self.records.setdefault((number, step.protocol), []).append(record)
        self.reporter.recorded(record)

    def _evaluate(self, step: Evaluate) -> Iterator[tuple[Evaluate, _Group]]:
        """Begin evaluations; those that are finished need nothing more."""
        options = self.plan.options if step.uses_frost_folder else replace(self.plan.options, frost_folder=None)
        groups: dict[str, list[tuple[int, Evaluation]]] = {}
        for number in step.models:
            evaluation = self._begin(number, step, options)
            if evaluation.finished is not None:
                self._recorded(number, step, evaluation.finished)
            else:  # models that number classes in another way have other labels
                key = evaluation.spec.data.digest if self.together else str(number)
                groups.setdefault(key, []).append((number, evaluation))
        yield from ((step, group) for group in groups.values())

    def progress(self, step: Evaluate, group: _Group) -> Progress:
        """Begin to show how far a group is."""
        title = group[0][1].subject.name if len(group) == 1 else f"{len(group)} models"
        return self.reporter.start(f"{title}  {step.protocol}")

    def _begin(self, number: int, step: Evaluate, options: RunOptions) -> Evaluation:
        scenario = step.scenario
        audit = self.audits.get((number, eps_of(scenario))) if isinstance(scenario, Attack) else None
        command = self._command(number, step, options, audit)
        evaluation = Evaluation.begin(
            self.models[number], self.data[number], step.label, scenario, options=options, audit=audit, command=command
        )
        if evaluation.outdated:
            names = ", ".join(evaluation.outdated)
            self.reporter.announce(f"{self.models[number].label}  {step.label}  made again: another version of {names}")
        return evaluation

    def _command(self, number: int, step: Evaluate, options: RunOptions, audit: Audit | None) -> Command | tuple[str]:
        """Return what makes the record again: a command, or the call from Python in short where objects were given."""
        model, request, data = self.plan.models[number], self.plan.data, self.data[number]
        if isinstance(model, ModelRequest) and not isinstance(request.data, Dataset):
            level = audit.plan.level if audit is not None else "none" if isinstance(step.scenario, Attack) else None
            return Command(model, request, step.protocol, step.overrides, options=options, audit=level)
        sizes = {"size": request.size, "crop": request.crop}
        how = {"seed": options.seed, "batch_size": options.batch_size, "allow": options.allow, **sizes}
        samples = f"{data.name} {data.split}, {len(data)} samples"
        return call(self.models[number].label, samples, step.protocol, **how, **step.overrides)

    def smaller(self, number: int, step: Evaluate) -> Record | None:
        """Return the record of the model at the next smaller budget, if it was made here."""
        if not step.goes_on:
            return None
        assert isinstance(step.scenario, Attack)
        below = step.scenario.smaller().digest()
        finished = self.records.get((number, step.protocol), [])
        return next((record for record in finished if record.spec.protocol.digest == below), None)

    def _audit(self, step: AuditModel) -> None:
        """Audit a model at the eps of its attack records; an existing audit in the output folder is used again."""
        named, data, options = self.models[step.model], self.data[step.model], self.plan.options
        if isinstance(step.audit, Audit):
            self.audits[step.model, step.eps] = step.audit
        if isinstance(step.audit, Audit) or not is_differentiable(named.model):
            return
        level = default_level(len(data)) if step.audit is True else step.audit
        ask = partial(
            audit_model, named.model, data, eps=step.eps, seed=options.seed, batch_size=options.batch_size,
            device=options.device, name=named.label, allow=options.allow, out=options.out, fresh=options.fresh,
            level=level,
        )  # fmt: skip
        progress = self.reporter.start(f"{named.label}  audit")
        self.audits[step.model, step.eps] = shown(self.reporter.screen, named.label, ask, progress)


def _require_possible(plan: Plan, models: Sequence[NamedModel]) -> None:
    """Refuse a folder that cannot be written, and attacks by gradients on models that have none."""
    if plan.options.out is not None:
        require_writable(plan.options.out)
    for step in plan.steps:
        if isinstance(step, Evaluate):
            for number in step.models:
                require_gradients(models[number].model, step.scenario)


def load_data(plan: Plan, models: Sequence[NamedModel], reporter: Reporter) -> list[Dataset]:
    """Load the samples as each model takes them; models that take them alike share them."""
    views: dict[View | None, Dataset] = {}
    by_digest: dict[str, Dataset] = {}
    datasets = []
    for named in models:
        view = plan.data.view_for(named)
        if view not in views:
            data = plan.data.load(view).in_order()
            views[view] = by_digest.setdefault(data.digest(), data)
        datasets.append(views[view])
        _say(named, views[view], reporter)
    return datasets


def _say(named: NamedModel, data: Dataset, reporter: Reporter) -> None:
    """Say how pictures are resized, and how classes are matched unless they are just counted alike."""
    if note := how_shown(data, named.model):
        (reporter.warn if data.resized or data.notes else reporter.announce)(f"{named.label}: {note}")
    classes, how = stated_classes(named.model) or data.classes, ""
    with contextlib.suppress(BadInputError):  # the first batch refuses it, after what else may be wrong
        _, how = task_named(data.task).compute.match_classes(data, classes, class_names_of(named.model))
    if how and not how.endswith("by number"):
        reporter.announce(f"{named.label}: {how}")


USUAL = 64
MEMORY = 80 * 10**9  # bytes of the GPUs in `DEVICES`


@dataclass(frozen=True)
class Foretold:
    """What one model takes under one protocol.

    Attributes:
        model: its name.
        protocol: its label.
        samples: their number.
        forwards: the most forward passes of a sample, draws included; None where that is not known.
        backwards: the same of backward passes.
        operations: operations of a forward pass of one row, two for each multiply-add.
        batch_size: with which it will be evaluated.
        seconds: device -> estimate; empty where the passes are not known.
    """

    model: str
    protocol: str
    samples: int
    forwards: int | None
    backwards: int | None
    operations: int
    batch_size: int
    seconds: Mapping[str, float]


def foretell(plan: Plan, reporter: Reporter) -> list[Foretold]:
    """Load the models and data of a plan, show each model one row, and return a row for each evaluation.

    Corruptions and clean pictures of scenes and texts take as many passes as windows: there they are not known.

    Raises:
        BadInputError: a model or data cannot be loaded, the model fails, or model, data and protocol are incompatible.
    """
    models = [model.named() for model in plan.models]
    _require_possible(plan, models)
    data = load_data(plan, models, reporter)
    steps = [step for step in plan.steps if isinstance(step, Evaluate)]
    return [
        foretold(models[number], data[number], step.label, step.scenario, plan.options)
        for step in steps
        for number in step.models
    ]


def foretold(named: NamedModel, data: Dataset, label: str, scenario: Scenario, options: RunOptions) -> Foretold:
    """Return what one model takes under one protocol, from one row that it is shown."""
    require_fit(named.model, data, scenario)
    compute = task_named(data.task).compute
    where = device_for(named.model, options.device)
    row = compute.first_inputs(named.model, data, scenario, 1)
    runner = runner_for(named.model, data, scenario, 1, where)
    classes = runner.logits(row.to(where)).shape[1]
    compute.match_classes(data, classes, class_names_of(named.model))
    work = work_of(runner, row).once(scenario.draws)
    graded = compute.success.graded
    passes = None if graded and not isinstance(scenario, Attack) else most_passes(scenario, classes, graded=graded)
    usual = compute.batch_size(named.model, data, scenario)
    return Foretold(
        model=named.label,
        protocol=label,
        samples=len(data),
        forwards=None if passes is None else passes.forwards,
        backwards=None if passes is None else passes.backwards,
        operations=work.operations,
        batch_size=options.batch_size or batch_on(where, usual, named.model, data, scenario),
        seconds={} if passes is None else estimates(work, passes, len(data)),
    )


def estimates(work: Work, passes: Passes, samples: int) -> dict[str, float]:
    """Return the most seconds that the samples take on each of `DEVICES`, with the batch size that is chosen there."""
    batch = larger(USUAL, work, MEMORY, min(samples, MOST))

    def seconds(rates: Rates) -> float:
        return samples * passes.in_forwards * work.seconds(batch, rates)

    return {name: seconds(rates) for name, rates in DEVICES.items()}
