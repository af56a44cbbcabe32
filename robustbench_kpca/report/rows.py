"""The number of a row in a column, and the test between two rows: of single models, or of several trainings each.

A row of one model is about that model: its interval and its test are over samples. A row of several trainings is about
their recipe, so both take the spread between trainings into account (`records/trainings.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce

import numpy as np

from robustbench_kpca.metrics import Mean, Metric, Paired, Scores, Statistic, aligned
from robustbench_kpca.metrics.shared.metric import scores_error
from robustbench_kpca.records.estimate import Estimate, mean
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.trainings import over_trainings, recipes_differ
from robustbench_kpca.report.board_spec import Column

Cell = Sequence[Record]
"""The records of one model in one column: one per protocol."""


def estimate(metric: Metric, column: Column, trainings: Sequence[Cell]) -> Estimate | None:
    """Return the number of a row: of its model, or the mean over its trainings; None without records."""
    found = [number for _, number in measured(metric, column, trainings)]
    if len(found) < 2:
        return found[0] if found else None
    whole = over_trainings(found)
    if metric.share:
        return replace(whole, low=max(whole.low, 0.0), high=min(whole.high, 1.0))
    return whole


def paired(metric: Metric, column: Column, first: Sequence[Cell], second: Sequence[Cell]) -> Paired | None:
    """Compare two rows on the same samples.

    None where it cannot be done: a row without numbers, or one training against several, since one has no spread.
    """
    rows = [measured(metric, column, row) for row in (first, second)]
    cells = [[cell for cell, _ in row] for row in rows]
    fewest, most = sorted(map(len, cells))
    if fewest == 0 or (fewest == 1 and most > 1):
        return None
    if most == 1:
        return _paired_models(metric, column, cells[0][0], cells[1][0])
    values, error = several(metric, column, rows)
    means = [float(np.mean(of_row)) for of_row in values]
    return Paired(means[0], means[1], recipes_differ(values[0], values[1], error), None, None)


def several(
    metric: Metric, column: Column, rows: Sequence[Sequence[tuple[Cell, Estimate]]]
) -> tuple[list[list[float]], float]:
    """Return the numbers of the trainings of two rows, and the standard error over samples of the means' difference."""
    values = [[number.value for _, number in row] for row in rows]
    if isinstance(metric, Mean):
        return values, scores_error(*([scores(metric, column, cell) for cell, _ in row] for row in rows))
    assert isinstance(metric, Statistic)
    return values, metric.difference_error(*([part(cell[0], column.corruption) for cell, _ in row] for row in rows))


def measured(metric: Metric, column: Column, trainings: Sequence[Cell]) -> list[tuple[Cell, Estimate]]:
    """Return the models that have a number, with it."""
    found = [(cell, _single(metric, column, cell)) for cell in trainings]
    return [(cell, number) for cell, number in found if number is not None]


def _single(metric: Metric, column: Column, cell: Cell) -> Estimate | None:
    """Return the number of one model; None where its record says that the metric does not apply, by lacking it."""
    if len(cell) > 1:
        return mean(scores(metric, column, cell).values)
    recorded = cell[0].metrics.get(metric.name)  # seen to follow from the outcomes when it was loaded
    if column.reference is None and (recorded is None or column.corruption is None):
        return recorded
    if isinstance(metric, Mean) and type(metric).estimate is Mean.estimate:
        return mean(scores(metric, column, cell).values)  # what `estimate` does, with scores that are kept
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
    return _Tables(tuple(one.outcomes_file.sha256 for one in cell), cell)


@lru_cache(maxsize=4096)
def _estimate(metric: Metric, corruption: str | None, tables: _Tables) -> Estimate:
    return metric.estimate(part(tables.records[0], corruption))


@lru_cache(maxsize=4096)
def _scores(metric: Metric, corruption: str | None, tables: _Tables) -> Scores:
    assert isinstance(metric, Mean)
    return reduce(_worse, (metric.scores(part(record, corruption)) for record in tables.records))


def _worse(one: Scores, other: Scores) -> Scores:
    mine, theirs = aligned(one, other)
    return Scores(np.sort(one.samples), np.minimum(mine, theirs))


def part(record: Record, corruption: str | None) -> Outcomes:
    """Return the outcomes, of one corruption where it is named; clean pictures stay with it."""
    outcomes = record.outcomes
    if corruption is None:
        return outcomes
    return outcomes.where((outcomes["corruption"] == corruption) | (outcomes["severity"] == 0))
