"""Carry out the open steps of a pack. What is finished is kept; a step that fails is reported."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca._core.lock import HeldError
from robustbench_kpca._core.progress import Progress
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.evaluation.engines import processes_of
from robustbench_kpca.evaluation.execute import execute
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.plan import Job, make_plan
from robustbench_kpca.evaluation.reporter import Reporter
from robustbench_kpca.evaluation.requests import DataRequest, NamedModel
from robustbench_kpca.records.audit import Level
from robustbench_kpca.study.diagnostics.diagnosis import BLOCK
from robustbench_kpca.study.diagnostics.pages import write_pages
from robustbench_kpca.study.diagnostics.procedures import corrected, normalise_as_study, study_of_images, study_view
from robustbench_kpca.study.diagnostics.run import diagnose
from robustbench_kpca.study.diagnostics.sources import ImageSource
from robustbench_kpca.study.diagnostics.trajectory import over_training
from robustbench_kpca.study.reproduction.efficiency import Measure, measure
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.steps import Diagnose, Evaluate, Follow, Planned, Train, most_valuable_first
from robustbench_kpca.study.reproduction.tables import SEED
from robustbench_kpca.study.reproduction.trainings import Trainings, is_trained
from robustbench_kpca.training.at_once import launched


@dataclass(frozen=True)
class Settings:
    """How a pack is run.

    Attributes:
        budget: seconds; None: no limit. When they end, a training stops after its epoch and an evaluation at its next
            news; both go on next time. Another step that was begun is carried out.
        train: whether to train; otherwise only what is trained already is evaluated.
        together: whether the seeds of an arm are trained in one pass, where that can be.
        audit: how thoroughly models are audited before they are attacked, as `make_plan` takes it.
        options: how it is evaluated, as in `rbk eval`; seed and folder are those of the pack.
    """

    budget: float | None = None
    train: bool = True
    together: bool = False
    audit: Level | bool = True
    options: RunOptions = field(default_factory=lambda: RunOptions(device="cpu"))

    @property
    def device(self) -> str:
        """The device of everything that is no training."""
        return self.options.device or "cpu"


def run(steps: Sequence[Planned], roles: Roles, settings: Settings, reporter: Reporter) -> list[Planned]:
    """Carry out all open steps; return every step with its new state: also `failed`, or `open` beyond the budget.

    What was done with a model that is trained again is done again; records of equal weights are kept. In the first
    process of a launch, all trainings come first.
    """
    end = None if settings.budget is None else time.monotonic() + settings.budget
    evaluating = reporter if end is None else _Until(reporter, end)
    after: list[Planned] = []
    trained_again: set[str] = set()
    steps = steps if settings.budget is None else most_valuable_first(steps)
    units = _units(steps, one_by_one=settings.budget is not None, together=settings.together)
    open_units = {
        number: unit
        for number, unit in enumerate(units)
        if settings.train and unit[0].state == "open" and isinstance(unit[0].step, Train)
    }
    trainings = Trainings(open_units, processes_of(settings.options), end, roles, reporter)
    if launched() and settings.train:
        trainings.on_all_processes()
    for number, unit in enumerate(units):
        if unit[0].state == "done" and unit[0].step.model.name in trained_again:
            unit = [replace(unit[0], state="open")]
        if unit[0].state != "open":
            after += unit
            continue
        if number in open_units:
            after += trainings[number]
            trained_again |= {one.step.model.name for one in trainings[number] if one.ended and one.state == "done"}
            continue
        untrained = [planned for planned in unit if not is_trained(planned)]
        after += [
            replace(planned, state="absent", why=f"{planned.step.model.name} is not trained") for planned in untrained
        ]
        unit = [planned for planned in unit if planned not in untrained]
        if not unit:
            continue
        if end is not None and time.monotonic() >= end:
            after += [replace(planned, why="beyond the budget") for planned in unit]
            continue
        after += _done(unit, roles, settings, evaluating if isinstance(unit[0].step, Evaluate) else reporter)
    return after


class _SpentError(Exception):
    """The time of a run is over."""


class _Until(Reporter):
    """A reporter that ends an evaluation at the first news after a time."""

    def __init__(self, reporter: Reporter, end: float) -> None:
        super().__init__(reporter.screen, reporter.progress)
        self.end = end

    def start(self, title: str) -> Progress:
        """Begin a progress bar."""
        progress = super().start(title)

        def tell(done: int, total: int, /, **news: Any) -> None:
            progress(done, total, **news)
            if done < total and time.monotonic() >= self.end:
                raise _SpentError

        return tell


def _done(unit: Sequence[Planned], roles: Roles, settings: Settings, reporter: Reporter) -> list[Planned]:
    """Carry out a unit; return its steps with their new states.

    Where several steps fail together, they are carried out again model by model, and those of one model one by one:
    finished records are kept, and only a step that fails alone is reported as failed.
    """
    try:
        _carry_out(unit, roles, settings, reporter)
    except BenchmarkError as error:
        if len(unit) == 1:
            return [replace(unit[0], state="open" if isinstance(error, HeldError) else "failed", why=str(error))]
        return [planned for part in _parts(unit) for planned in _done(part, roles, settings, reporter)]
    except _SpentError:  # a unit of one step
        return [replace(planned, why="stopped by the budget; it goes on next time") for planned in unit]
    return [replace(planned, state="done") for planned in unit]


def _parts(unit: Sequence[Planned]) -> list[list[Planned]]:
    models = dict.fromkeys(planned.step.model for planned in unit)
    if len(models) == 1:
        return [[planned] for planned in unit]
    return [[planned for planned in unit if planned.step.model == model] for model in models]


def _units(steps: Sequence[Planned], *, one_by_one: bool, together: bool) -> list[list[Planned]]:
    """Group evaluations that share samples, so that these are loaded and corrupted once; all else stands alone.

    With `together` the trainings of an arm are a group, too; with `one_by_one` every evaluation stands alone.
    """
    units: dict[tuple[object, ...], list[Planned]] = {}
    for number, planned in enumerate(steps):
        key: tuple[object, ...] = (number,)
        if isinstance(planned.step, Evaluate) and planned.state == "open" and not one_by_one:
            wanted = planned.step.evaluation
            key = (planned.step.model.order, wanted.samples, *wanted.overrides.items())
        elif isinstance(planned.step, Train) and planned.state == "open" and together:
            key = (planned.step.model.arm,)
        units.setdefault(key, []).append(planned)
    return list(units.values())


def _carry_out(unit: Sequence[Planned], roles: Roles, settings: Settings, reporter: Reporter) -> None:
    match unit[0].step:
        case Evaluate():
            _evaluate([each.step for each in unit if isinstance(each.step, Evaluate)], roles, settings, reporter)
        case Diagnose() as step:
            _diagnose(step, roles, settings, reporter)
        case Follow() as step:
            training = step.model.training
            assert training is not None
            over_training(training.weights.parent, roles.source(step.data), step.splits, step.images).save(step.folder)
        case Measure() as step:
            measure(step, settings.device).save(step.folder)


def _evaluate(steps: Sequence[Evaluate], roles: Roles, settings: Settings, reporter: Reporter) -> None:
    wanted = steps[0].evaluation
    jobs = [
        Job(
            model.request,
            [step.evaluation.protocol for step in steps if step.model == model],
            {**wanted.overrides},
        )
        for model in dict.fromkeys(step.model for step in steps)
    ]
    options = replace(settings.options, seed=SEED, out=roles.out / "records", device=settings.device)
    samples = roles.load(wanted.data, wanted.split)
    images = not isinstance(samples, str) and samples.form.box  # only images are audited
    execute(make_plan(jobs, roles.data_request(wanted), options, audit=settings.audit if images else False), reporter)


def _diagnose(step: Diagnose, roles: Roles, settings: Settings, reporter: Reporter) -> None:
    network, request = step.model.request.load(), step.model.request
    data = roles.source(step.data)
    if step.literal:
        samples = Samples.require(DataRequest(data, step.splits[0]).load(study_view(network)))
        normalise_as_study(network)
        procedure = study_of_images(samples, step.claims, most=step.images)
    else:
        samples = Samples.require(DataRequest(data, step.splits[0], step.images).load_for(network))
        procedure = corrected(ImageSource(samples.in_order()), step.claims)
    named, block = NamedModel(network, step.name, request.source), min(BLOCK, step.images)
    done = diagnose(
        named, procedure, block=block, seed=SEED, device=settings.device, progress=reporter.start(str(step))
    )
    done.save(step.folder)
    write_pages(done, step.folder)
