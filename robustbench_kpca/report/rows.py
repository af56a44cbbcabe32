"""The number of a row in a column, and the test between two rows: of single models, or of several trainings each.

A row of one model is about that model: its interval and its test are over samples. A row of several trainings is about
their recipe, so both take the spread between trainings into account, and the test the seeds that two rows share
(`records/trainings.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce

import numpy as np

from robustbench_kpca.metrics import Mean, Metric, Paired, Scores, Statistic, aligned
from robustbench_kpca.records.estimate import Estimate, Values, mean
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.trainings import Comparison, OverSamples, compare, over_trainings
from robustbench_kpca.report.board_spec import Column

Cell = Sequence[Record]
"""The records of one model in one column: one per protocol."""
Trainings = Mapping[int, Cell]
"""The cells of a row in one column by seed, which rows share."""


def estimate(metric: Metric, column: Column, trainings: Sequence[Cell]) -> Estimate | None:
    """Return the number of a row: of its model, or the mean over its trainings; None without records."""
    numbers = [number for _, number in measured(metric, column, trainings)]
    if len(numbers) < 2:
        return numbers[0] if numbers else None
    whole = over_trainings(numbers)
    if metric.share:
        return replace(whole, low=max(whole.low, 0.0), high=min(whole.high, 1.0))
    return whole


def paired(
    metric: Metric, column: Column, first: Trainings, second: Trainings, other_rows: Iterable[Trainings] = ()
) -> Paired | None:
    """Compare two rows on the same samples; rows of several trainings on the seeds that they share.

    None where it cannot be done: a row without numbers, one training against several, since one has no spread, or
    fewer than two seeds that rows of several trainings share.

    Args:
        other_rows: rows of several trainings, whose spread counts, too.
    """
    models = [measured(metric, column, list(row.values())) for row in (first, second)]
    if [len(row) for row in models] == [1, 1]:
        return _paired_models(metric, column, models[0][0][0], models[1][0][0])
    result = compared(metric, column, first, second, other_rows)
    return None if result is None else Paired(result.first, result.second, result.p_value, None, None)


def compared(
    metric: Metric, column: Column, first: Trainings, second: Trainings, other_rows: Iterable[Trainings] = ()
) -> Comparison | None:
    """Compare two rows of several trainings on the seeds that they share; None as `paired`, and the arguments."""
    both = shared(metric, column, first, second, other_rows)
    return None if both is None else compare(*both)


def shared(
    metric: Metric, column: Column, first: Trainings, second: Trainings, other_rows: Iterable[Trainings] = ()
) -> tuple[Values, OverSamples] | None:
    """Return the numbers of two rows in the seeds that they share, and what samples add to their difference.

    Below the numbers of the two, shape (rows, seeds), are those of every other row that has all of these seeds.
    """
    rows = [_by_seed(metric, column, row) for row in (first, second, *other_rows)]
    seeds = sorted(rows[0].keys() & rows[1].keys())
    if len(seeds) < 2:
        return None
    rows = [row for row in rows if row.keys() >= set(seeds)]
    numbers = np.array([[row[seed][1].value for seed in seeds] for row in rows])
    return numbers, over_samples(metric, column, *([row[seed][0] for seed in seeds] for row in rows[:2]))


def over_samples(metric: Metric, column: Column, first: Sequence[Cell], second: Sequence[Cell]) -> OverSamples:
    """Return what samples add to the difference of two rows of as many trainings, in the order of their seeds."""
    if isinstance(metric, Mean):
        models = [scores(metric, column, cell) for cell in (*first, *second)]
        table = np.stack([aligned(models[0], other)[1] for other in models])
        return OverSamples.of(table[: len(first)] - table[len(first) :])
    assert isinstance(metric, Statistic)
    tables = ([part(cell[0], column.corruption) for cell in row] for row in (first, second))
    return OverSamples(metric.difference_error(*tables) ** 2)


def _by_seed(metric: Metric, column: Column, trainings: Trainings) -> dict[int, tuple[Cell, Estimate]]:
    numbers = {seed: _single(metric, column, cell) for seed, cell in trainings.items()}
    return {seed: (trainings[seed], number) for seed, number in numbers.items() if number is not None}


def measured(metric: Metric, column: Column, trainings: Sequence[Cell]) -> list[tuple[Cell, Estimate]]:
    """Return the models that have a number, with that number."""
    return list(_by_seed(metric, column, dict(enumerate(trainings))).values())


def _single(metric: Metric, column: Column, cell: Cell) -> Estimate | None:
    """Return the number of one model; None where its record says that the metric does not apply, by lacking it."""
    if len(cell) > 1:
        return _of_scores(metric, column.corruption, _tables(cell))
    recorded = cell[0].metrics.get(metric.name)  # checked against the outcomes when the record was loaded
    if column.reference is None and (recorded is None or column.corruption is None):
        return recorded
    if isinstance(metric, Mean) and type(metric).estimate is Mean.estimate:
        return _of_scores(metric, column.corruption, _tables(cell))  # what `estimate` does
    return _estimate(metric, column.corruption, _tables(cell))


def _paired_models(metric: Metric, column: Column, first: Cell, second: Cell) -> Paired:
    if isinstance(metric, Mean):
        return metric.paired_scores(scores(metric, column, first), scores(metric, column, second))
    return metric.paired(*(part(cell[0], column.corruption) for cell in (first, second)))


@dataclass(frozen=True)
class _Tables:
    """The tables of a cell; cells are alike where the digests of their tables are."""

    digests: tuple[str, ...]
    records: Cell = field(compare=False)


def scores(metric: Metric, column: Column, cell: Cell) -> Scores:
    """Per-sample scores, in the worst case of several protocols; the latest are kept."""
    return _scores(metric, column.corruption, _tables(cell))


def _tables(cell: Cell) -> _Tables:
    return _Tables(tuple(record.outcomes_file.sha256 for record in cell), cell)


@lru_cache(maxsize=4096)
def _estimate(metric: Metric, corruption: str | None, tables: _Tables) -> Estimate:
    return metric.estimate(part(tables.records[0], corruption))


@lru_cache(maxsize=4096)
def _of_scores(metric: Metric, corruption: str | None, tables: _Tables) -> Estimate:
    return mean(_scores(metric, corruption, tables).values)


@lru_cache(maxsize=4096)
def _scores(metric: Metric, corruption: str | None, tables: _Tables) -> Scores:
    assert isinstance(metric, Mean)
    return reduce(_worse, (metric.scores(part(record, corruption)) for record in tables.records))


def _worse(first: Scores, second: Scores) -> Scores:
    a, b = aligned(first, second)
    return Scores(np.sort(first.samples), np.minimum(a, b))


def part(record: Record, corruption: str | None) -> Outcomes:
    """Return the outcomes, of one corruption where it is named; clean pictures stay with it."""
    outcomes = record.outcomes
    if corruption is None:
        return outcomes
    return outcomes.where((outcomes["corruption"] == corruption) | (outcomes["severity"] == 0))
