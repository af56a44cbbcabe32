"""From a model, samples and an attack to rows of outcomes; can be stopped at any moment and resumed."""

from collections.abc import Callable
from itertools import groupby

from robustbench_kpca.attack_loop.engine import Engine
from robustbench_kpca.attack_loop.pool import Sample
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.options import Progress
from robustbench_kpca.inference.input_space import InputSpace
from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.runner import Runner
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
        runner: of the model.
        data: in the order of outcomes.
        protocol: with budgets `below`, what is found there counts here, too.
        seed: of all randomness.
        workers: processes that load samples.
        journal: what a killed run goes on from.
        progress: called with samples decided and in all.
        keep: called with each sample as it is decided.
        smaller: the outcomes at the next smaller budget of `below`; measured first where not given.

    Raises:
        BadInputError: a protocol or an attack that has no meaning for this task.
        EvaluationError: the attack started and could not finish.

    """
    task = task_named(data.task)
    table = task.table(protocol.kind)
    if protocol.below and smaller is None:
        part = journal.part(f"{protocol.smaller().eps:g}") if journal else None
        smaller = attack_all(
            runner, data, protocol.smaller(), seed=seed, workers=workers, journal=part, keep=keep
        )  # fmt: skip
        if part:
            found = dict(enumerate(_by_sample(smaller)))
            part.write({"undecided": [], "rows": found, "batch_size": runner.batch_size})
    before = [] if smaller is None else _by_sample(smaller)
    rows = {index: own for index, own in enumerate(before) if task.compute.is_settled(own)}
    space = InputSpace.of(runner.model, protocol.space)

    def sink(sample: Sample) -> None:
        own = task.compute.rows(sample, space)
        rows[sample.index] = task.compute.combined(own, before[sample.index]) if before else own
        if keep is not None:
            keep(sample)
        if progress is not None:
            progress(len(rows), len(data))

    engine = Engine(runner, protocol, task.compute.success, data.ids, seed, sink)
    _run(engine, rows, data, workers, journal)
    return Outcomes.from_rows(table, [row for index in range(len(data)) for row in rows[index]])


def _run(engine: Engine, rows: dict[int, list[Row]], data: Dataset, workers: int, journal: Journal | None) -> None:
    """Attack the samples that have no rows yet, from where the journal stands.

    Samples that the journal holds undecided can share batches. They come first where not all others can join them.
    """
    compute, runner = task_named(data.task).compute, engine.runner
    saved, undecided = journal.read() if journal else None, set[int]()
    if saved:
        rows |= saved["rows"]
        runner.batch_size = min(runner.batch_size, saved["batch_size"])
        engine.restore(saved["undecided"])
        undecided = {entry["sample"]["index"] for entry in saved["undecided"]}

    def save_if_due() -> None:
        if journal and journal.due():
            journal.write({"undecided": engine.snapshot(), "rows": rows, "batch_size": runner.batch_size})

    groups = compute.groups(data, [index for index in range(len(data)) if index not in rows])
    if len(groups) != 1:
        engine.run(iter(()), save_if_due)
    for group in groups:
        fresh = [index for index in group if index not in undecided]
        engine.run(compute.batches(data, fresh, runner.batch_size, workers), save_if_due)


def _by_sample(outcomes: Outcomes) -> list[list[Row]]:
    return [list(rows) for _, rows in groupby(outcomes.rows(), key=lambda row: row["sample"])]
