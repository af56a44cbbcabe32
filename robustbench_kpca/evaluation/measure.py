"""From a model, samples and an attack to one row per sample; interruptible at any moment."""

from collections.abc import Callable, Iterator
from typing import Any

from robustbench_kpca.attack_loop.engine import CleanBatch, Engine, Sample
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.evaluation.plain import Progress
from robustbench_kpca.inference.input_space import Space
from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.loader import batches
from robustbench_kpca.inference.runner import Runner
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.outcomes import COUNTS, Outcomes

Row = dict[str, Any]


def measure_attack(
    runner: Runner,
    samples: Samples,
    scenario: Attack,
    *,
    seed: int,
    workers: int,
    journal: Journal | None,
    progress: Progress | None,
    keep: Callable[[Sample], None] | None = None,
    carried: Outcomes | None = None,
) -> Outcomes:
    """Attack every sample; `keep` sees each one as it is decided, with its worst image.

    `carried` are the outcomes at the next smaller of the budgets `below`; they are measured first where not given.
    """
    if scenario.below and carried is None:
        smaller = scenario.smaller()
        part = journal.part(f"{smaller.eps:g}") if journal else None
        how: dict[str, Any] = {"seed": seed, "workers": workers, "journal": part, "progress": None, "keep": keep}
        carried = measure_attack(runner, samples, smaller, **how)
        if part:
            part.write({"undecided": [], "rows": dict(enumerate(carried.rows())), "batch_size": runner.batch_size})
    before = [] if carried is None else carried.rows()
    rows: dict[int, Row] = {index: row for index, row in enumerate(before) if row["broken_by"]}
    space = Space.of(runner.model, scenario.space)

    def sink(sample: Sample) -> None:
        row = _attack_row(sample, space)
        if before:
            row |= {count: row[count] + before[sample.index][count] for count in COUNTS}
        rows[sample.index] = row
        if keep is not None:
            keep(sample)
        if progress is not None:
            progress(len(rows), len(samples))

    engine = Engine(runner, scenario, samples.ids, seed, sink)
    run_journalled(engine, rows, journal, lambda fresh: _source(samples, fresh, runner.batch_size, workers))
    return Outcomes.from_rows("attack", [rows[index] for index in range(len(samples))])


def run_journalled(
    engine: Engine,
    rows: dict[int, Any],
    journal: Journal | None,
    source: Callable[[list[int]], Iterator[CleanBatch]],
    groups: Callable[[list[int]], list[list[int]]] | None = None,
) -> None:
    """Attack what `source` yields of the samples that have no rows yet, from where the journal stands.

    `rows` are what the engine's sink fills, by number of the sample. `groups` parts samples that can
    share no batch; those that the journal holds undecided are of one group, and come before all others.
    """
    runner, saved, undecided = engine.runner, journal.read() if journal else None, set[int]()
    if saved:
        rows |= saved["rows"]
        runner.batch_size = min(runner.batch_size, saved["batch_size"])
        engine.restore(saved["undecided"])
        undecided = {entry["sample"]["index"] for entry in saved["undecided"]}

    def pulse() -> None:
        if journal and journal.due():
            journal.write({"undecided": engine.snapshot(), "rows": rows, "batch_size": runner.batch_size})

    fresh = [index for index in range(len(engine.ids)) if index not in rows and index not in undecided]
    if groups is None:
        engine.run(source(fresh), pulse)
        return
    engine.run(iter(()), pulse)
    for group in groups(fresh):
        engine.run(source(group), pulse)


def _source(samples: Samples, indices: list[int], batch_size: int, workers: int) -> Iterator[CleanBatch]:
    if indices:
        yield from batches(samples, indices, batch_size=batch_size, workers=workers)


def _attack_row(sample: Sample, space: Space) -> Row:
    clean, worst = space.leave(sample.clean[None]), space.leave(sample.worst[None])
    return {
        "sample": sample.id,
        "label": sample.label,
        "clean_prediction": sample.clean_prediction,
        "prediction": sample.prediction,
        "broken_by": sample.broken_by,
        "linf": float(distance(worst, clean, "linf")),
        "l2": float(distance(worst, clean, "l2")),
        "forwards": sample.forwards,
        "backwards": sample.backwards,
        "retracted": sample.retracted,
        "nonfinite": sample.nonfinite,
        "zero_gradients": sample.zero_gradients,
    }
