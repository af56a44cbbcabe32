"""Make a part of a record: show models a range of samples, or attack them. Every engine does this."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from torch import Tensor

from robustbench_kpca._core.errors import BenchmarkError, EvaluationError
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.attack_loop.passes import Watch
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.corrupted import frost_of
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.audit.first_batch import FirstBatch
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.kept import Keeper
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.protocols.scenario import Attack, Scenario, cells_of
from robustbench_kpca.records.differences import only
from robustbench_kpca.records.images import KeptImages
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.shards import Made, Shard, to_bytes
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import Row
from robustbench_kpca.tasks.results import ModelResults

Part = tuple[Outcomes, Made, KeptImages | None]
"""Outcomes of samples, what else is known of the work, and the exact images that are kept of an attack."""


@dataclass
class Subject:
    """A model that is ready to be shown samples.

    Attributes:
        name: its name in records.
        runner: runs it.
        first: the first batch, to see afterwards whether the model has changed.
        journal: keeps its progress; None: nowhere.
        wanted: ids of the samples whose images are kept.
    """

    name: str
    runner: Runner
    first: FirstBatch
    wanted: frozenset[str]
    journal: Journal | None = None


def make_part(
    subjects: Sequence[Subject],
    data: Dataset,
    scenario: Scenario,
    options: RunOptions,
    *,
    smaller: Outcomes | None = None,
    progress: Progress | None = None,
) -> list[Part | EvaluationError]:
    """Show the models all samples of `data`, or attack these; return the outcomes, model by model.

    A model that changed meanwhile has an error in their place; its journal is deleted.

    Args:
        subjects: the models; of an attack a single one.
        data: the samples, sorted (`Dataset.in_order`): all of a record, or a range of them.
        scenario: the protocol.
        options: options of the run.
        smaller: the outcomes of these samples at the next smaller budget, where known.
        progress: told how far the work is.

    Raises:
        BadInputError: a protocol or an attack that is not defined for this task.
        EvaluationError: the work started but could not finish.
    """
    images = None
    with contextlib.ExitStack() as stack:
        for subject in subjects:
            stack.enter_context(frozen(subject.runner.model))
        if isinstance(scenario, Attack):
            (subject,), started = subjects, time.perf_counter()
            space = InputSpace.of(subject.runner.model, scenario.space)
            keeper = Keeper(subject.wanted, data, space, subject.journal)
            outcomes = attack_all(
                subject.runner, data, scenario, seed=options.seed, workers=options.workers,
                journal=subject.journal, progress=progress, keep=keeper.add, smaller=smaller,
            )  # fmt: skip
            images = keeper.images()
            finished = [(outcomes, Made(len(data), time.perf_counter() - started, subject.runner.batch_size))]
        else:
            compute = task_named(data.task).compute
            results = [
                compute.results(each.name, each.runner, data, scenario, journal=each.journal, seed=options.seed)
                for each in subjects
            ]
            show_all(
                results, data, scenario, batch_size=subjects[0].first.batch_size, seed=options.seed,
                workers=options.workers, frost=frost_of(scenario, options.frost_folder), progress=progress,
            )  # fmt: skip
            finished = [
                (each.outcomes(), Made(each.forwards, each.seconds, subject.runner.batch_size, tuple(each.remarks)))
                for each, subject in zip(results, subjects, strict=True)
            ]
    return [
        now if isinstance(now := _checked(subject, options, work), EvaluationError) else (outcomes, now, images)
        for subject, (outcomes, work) in zip(subjects, finished, strict=True)
    ]


def make_shard(
    subject: Subject,
    data: Dataset,
    scenario: Scenario,
    options: RunOptions,
    shard: Shard,
    *,
    smaller: Outcomes | None = None,
    progress: Progress | None = None,
) -> tuple[Made, bytes]:
    """Make the samples of a shard of `data`; return what is known of it, and the content of its file.

    `smaller`: the outcomes of all samples at the next smaller budget, where known.

    Raises:
        EvaluationError: as `make_part`, or the model changed meanwhile.
    """
    samples = data.take(range(shard.first, shard.last))
    below = None if smaller is None else only(smaller, samples.ids)
    [part] = make_part([subject], samples, scenario, options, smaller=below, progress=progress)
    if isinstance(part, EvaluationError):
        raise part
    return part[1], to_bytes(shard, *part)


def _checked(subject: Subject, options: RunOptions, work: Made) -> Made | EvaluationError:
    """Show the first batch again; return what is known of the work, earlier attempts included."""
    journal, runner = subject.journal, subject.runner
    try:
        after = subject.first.again(runner, options.allow)
    except EvaluationError as error:
        if journal is not None:
            journal.remove()
        return error
    seconds = round(work.seconds + (journal.earlier if journal else 0.0), 3)
    return replace(work, seconds=seconds, batch_size=runner.batch_size, remarks=(*work.remarks, *after))


def show_all(
    results: Sequence[ModelResults],
    data: Dataset,
    protocol: Scenario,
    *,
    batch_size: int,
    seed: int,
    workers: int | None,
    frost: str,
    progress: Progress | None,
) -> None:
    """Run every model on every sample in every cell of the grid; each is loaded and corrupted once for all models.

    Args:
        results: one per model, filled here; results resumed from a journal skip finished samples.
        data: the samples, sorted (`Dataset.in_order`).
        protocol: a protocol that is not an attack.
        batch_size: number of samples that are loaded together.
        seed: seed of the corruptions.
        workers: number of processes that load and corrupt samples; None: as many as the model needs (`in_batches`).
        frost: result of `inference.corrupted.frost_of`.
        progress: called with the samples that are done in all cells, and their number.
    """
    compute = task_named(data.task).compute
    cells = cells_of(protocol)
    rows = range(min(result.begun for result in results), len(cells) * len(data))
    began = time.perf_counter()
    batches = partial(compute.shown, batch_size=batch_size, seed=seed, frost=frost, workers=workers)
    for numbers, batch in batches(data, protocol, rows):
        share = (time.perf_counter() - began) / len(results)
        for result in results:
            result.seconds += share
            with _named(result, results):
                result.show(numbers[0], batch)
        began = time.perf_counter()
        if progress is not None:
            last = numbers[-1]
            progress(last + 1, rows.stop, stage=_cell(cells[last // len(data)]))
    for result in results:
        with _named(result, results):
            result.finish()


def _cell(place: tuple[str, int]) -> str:
    """Name a cell of a grid; nothing for the samples as they are."""
    return f"{place[0]} {place[1]}" if place[1] else ""


@contextlib.contextmanager
def _named(result: ModelResults, results: Sequence[ModelResults]) -> Iterator[None]:
    """If a model fails, save the results of all models so far and add the name of the model to the error."""
    try:
        yield
    except BenchmarkError as error:
        for other in results:
            other.save()
        if len(results) == 1:
            raise
        raise type(error)(f"model '{result.name}': {error}", fix="remove it, or evaluate it alone") from error


def attack_all(
    runner: Runner,
    data: Dataset,
    protocol: Attack,
    *,
    seed: int,
    workers: int | None = 0,
    journal: Journal | None = None,
    progress: Progress | None = None,
    keep: Callable[[Sample], None] | None = None,
    smaller: Outcomes | None = None,
) -> Outcomes:
    """Attack every sample.

    Args:
        runner: runs the model.
        data: the samples, sorted (`Dataset.in_order`).
        protocol: the attack; successes at its budgets `below` count too.
        seed: seed of all randomness.
        workers: number of processes that load samples; None: as many as the attack needs (`in_batches`).
        journal: stores the progress, so that an interrupted run can resume.
        progress: told of finished samples, passes and stage.
        keep: called with each sample when it is finished.
        smaller: the outcomes at the next smaller budget of `below`; computed first if None.

    Raises:
        BadInputError: a protocol or an attack that is not defined for this task.
        EvaluationError: the attack started but could not finish.
    """
    task = task_named(data.task)
    table = task.table(protocol.table)
    if protocol.below and smaller is None:
        part = journal.part(f"{protocol.smaller().eps:g}") if journal else None
        smaller = attack_all(
            runner, data, protocol.smaller(), seed=seed, workers=workers, journal=part, keep=keep, progress=progress
        )
        if part:
            part.write({"undecided": [], "rows": dict(enumerate(_by_sample(smaller))), "batch_size": runner.batch_size})
    before = [] if smaller is None else _by_sample(smaller)
    rows = {index: earlier for index, earlier in enumerate(before) if task.compute.is_settled(earlier)}
    space = InputSpace.of(runner.model, protocol.space)

    def sink(sample: Sample) -> None:
        new = task.compute.rows(sample, data, space)
        rows[sample.index] = task.compute.combined(new, before[sample.index]) if before else new
        if keep is not None:
            keep(sample)
        watch.sample(sample)

    engine = Engine(runner, protocol, task.compute.success, data.ids, seed=seed, sink=sink)
    watch = Watch(engine, len(data), data.classes, progress)
    undecided = _resume(engine, rows, data, workers, journal)
    watch.begin(len(rows), sum(task.compute.is_settled(of_sample) for of_sample in rows.values()))

    def on_batch() -> None:
        watch.batch()
        if journal and journal.due():
            journal.write({"undecided": engine.snapshot(), "rows": rows, "batch_size": runner.batch_size})

    groups = task.compute.groups(data, [index for index in range(len(data)) if index not in rows])
    if len(groups) != 1:  # what a journal holds has images of one size, and runs first unless all others have it too
        engine.run(iter(()), on_batch)
    for group in groups:
        fresh = [index for index in group if index not in undecided]
        engine.run(task.compute.batches(data, fresh, runner.batch_size, workers), on_batch)
    watch.report()
    return Outcomes.from_rows(table, [row for index in range(len(data)) for row in rows[index]])


def _resume(
    engine: Engine, rows: dict[int, list[Row]], data: Dataset, workers: int | None, journal: Journal | None
) -> set[int]:
    """Take up finished and unfinished samples of the journal, if there is one; return the unfinished ones."""
    compute, runner = task_named(data.task).compute, engine.runner
    saved = journal.read() if journal else None
    if not saved:
        return set()
    rows |= saved["rows"]
    runner.batch_size = min(runner.batch_size, saved["batch_size"])
    undecided = {entry["index"] for entry in saved["undecided"]}
    clean: dict[int, Tensor] = {}  # journals have no clean images
    for group in compute.groups(data, sorted(undecided)) if undecided else ():
        for indices, images, _ in compute.batches(data, group, runner.batch_size, workers):
            clean |= {index: x.clone() for index, x in zip(indices, engine.starting_images(images), strict=True)}
    engine.restore(saved["undecided"], clean)
    return undecided


def _by_sample(outcomes: Outcomes) -> list[list[Row]]:
    return [list(rows) for _, rows in groupby(outcomes.rows(), key=lambda row: row["sample"])]
