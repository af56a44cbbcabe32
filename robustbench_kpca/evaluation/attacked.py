"""Attack all samples of a data set and return the outcomes; an interrupted run can be resumed."""

from collections.abc import Callable
from itertools import groupby

from torch import Tensor

from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.time_left import Watch
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import Row


def attack_all(
    runner: Runner,
    data: Dataset,
    protocol: Attack,
    *,
    seed: int,
    workers: int = 0,
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
        workers: number of processes that load samples.
        journal: stores the progress, so that an interrupted run can resume.
        progress: told of finished samples, passes, stage and the time left (`progress.Progress`).
        keep: called with each sample when it is finished.
        smaller: the outcomes at the next smaller budget of `below`; computed first if None.

    Raises:
        BadInputError: a protocol or an attack that is not defined for this task.
        EvaluationError: the attack started but could not finish.

    """
    task = task_named(data.task)
    table = task.table(protocol.kind)
    if protocol.below and smaller is None:
        part = journal.part(f"{protocol.smaller().eps:g}") if journal else None
        smaller = attack_all(
            runner, data, protocol.smaller(), seed=seed, workers=workers, journal=part, keep=keep, progress=progress
        )
        if part:
            found = dict(enumerate(_by_sample(smaller)))
            part.write({"undecided": [], "rows": found, "batch_size": runner.batch_size})
    before = [] if smaller is None else _by_sample(smaller)
    rows = {index: own for index, own in enumerate(before) if task.compute.is_settled(own)}
    space = InputSpace.of(runner.model, protocol.space)

    def sink(sample: Sample) -> None:
        own = task.compute.rows(sample, data, space)
        rows[sample.index] = task.compute.combined(own, before[sample.index]) if before else own
        if keep is not None:
            keep(sample)
        if watch is not None:
            watch.sample(sample)

    engine = Engine(runner, protocol, task.compute.success, data.ids, seed=seed, sink=sink)
    watch = None if progress is None else Watch(engine, len(data), data.classes, progress)
    undecided = _resume(engine, rows, data, workers, journal)
    if watch is not None:
        watch.begin(len(rows), sum(task.compute.is_settled(own) for own in rows.values()))

    def on_batch() -> None:
        if watch is not None:
            watch.batch()
        if journal and journal.due():
            journal.write({"undecided": engine.snapshot(), "rows": rows, "batch_size": runner.batch_size})

    groups = task.compute.groups(data, [index for index in range(len(data)) if index not in rows])
    if len(groups) != 1:  # what a journal holds has images of one size, and runs first unless all others have it too
        engine.run(iter(()), on_batch)
    for group in groups:
        fresh = [index for index in group if index not in undecided]
        engine.run(task.compute.batches(data, fresh, runner.batch_size, workers), on_batch)
    if watch is not None:
        watch.report()
    return Outcomes.from_rows(table, [row for index in range(len(data)) for row in rows[index]])


def _resume(
    engine: Engine, rows: dict[int, list[Row]], data: Dataset, workers: int, journal: Journal | None
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
            clean |= {index: own.clone() for index, own in zip(indices, engine.given(images), strict=True)}
    engine.restore(saved["undecided"], clean)
    return undecided


def _by_sample(outcomes: Outcomes) -> list[list[Row]]:
    return [list(rows) for _, rows in groupby(outcomes.rows(), key=lambda row: row["sample"])]
