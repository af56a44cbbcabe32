"""By how much one row of a board is better than another in a column, with an interval, on the same samples.

Rows of one model each are compared on their samples: Newcombe's interval of the difference of two paired proportions
where every score is 0 or 1, else the bootstrap over samples, or the metric's own standard error where it is no mean.
Rows of several trainings are compared on the seeds that they share (`records/trainings.py`).
"""

import math
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.metrics import Mean, Metric, Statistic, aligned, metric_for
from robustbench_kpca.records.estimate import CONFIDENCE, Estimate, bootstrap_mean, proportion
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.rows import Cell, Trainings, compared, measured, part, scores


def gain(board: Board, better: str, than: str, column: Column, confidence: float = CONFIDENCE) -> Estimate | None:
    """Return how much better the row `better` is than the row `than`, in the metric's own scale; negative if worse.

    None where a row has no number, and where `Board.paired` compares none: one training has no spread, and pieces of
    few pictures say nothing of others.

    Args:
        confidence: confidence level of the interval, in (0, 1).
    """
    first, second = (than, better) if metric_for(column.metric).lower_is_better else (better, than)
    return difference_between(board, first, second, column, confidence)


def difference_between(
    board: Board, first: str, second: str, column: Column, confidence: float = CONFIDENCE
) -> Estimate | None:
    """Return the number of the row `first` minus that of the row `second`; None as in `gain`."""
    metric = board.metrics[column.title]
    if metric is None or column.untested or any(board.is_alone(title, column) for title in (first, second)):
        return None
    both = board.seeds(first, column), board.seeds(second, column)
    return difference(metric, column, *both, board.beside(first, second, column), confidence)


def difference(
    metric: Metric,
    column: Column,
    first: Trainings,
    second: Trainings,
    other_rows: Iterable[Trainings] = (),
    confidence: float = CONFIDENCE,
) -> Estimate | None:
    """Return the number of the first row minus that of the second; None where `rows.paired` gives none.

    Rows of several trainings are compared on the seeds that they share, which need not be all. Arguments as there.
    """
    rows = [measured(metric, column, list(row.values())) for row in (first, second)]
    if [len(row) for row in rows] == [1, 1]:
        return _of_models(metric, column, rows[0][0][0], rows[1][0][0], confidence)
    both = compared(metric, column, first, second, other_rows)
    if both is None:
        return None
    n = min(number.n for row in rows for _, number in row)
    return Estimate(both.difference, *both.interval(confidence), n, f"{both.trainings} seeds")


def paired_proportions(a: NDArray[np.bool_], b: NDArray[np.bool_], confidence: float = CONFIDENCE) -> Estimate:
    """Return the difference of two proportions of the same samples, with Newcombe's interval.

    Newcombe (1998), Improved confidence intervals for the difference between binomial proportions based on paired
    data, Statistics in Medicine 17, method 10. With p1, p2 the proportions, [l1, u1] and [l2, u2] their Wilson
    intervals, and phi their correlation, whose numerator n11 n00 - n10 n01 is lowered by n / 2, not below 0, if it is
    positive,

        low  = d - sqrt( (p1 - l1)^2 - 2 phi (p1 - l1) (u2 - p2) + (u2 - p2)^2 )
        high = d + sqrt( (p2 - l2)^2 - 2 phi (p2 - l2) (u1 - p1) + (u1 - p1)^2 ),    d = p1 - p2

    so two rows that agree on every sample still have an interval.
    """
    n = len(a)
    of_a, of_b = (proportion(int(part.sum()), n, confidence) for part in (a, b))
    (p1, l1, u1), (p2, l2, u2) = ((part.value, part.low, part.high) for part in (of_a, of_b))
    both, first, second = (int(part.sum()) for part in (a & b, a & ~b, ~a & b))
    neither = n - both - first - second
    product = both * neither - first * second
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    phi = 0.0 if margins == 0 else (max(product - n / 2, 0.0) if product > 0 else product) / math.sqrt(margins)
    d = p1 - p2
    low = d - math.sqrt(max(0.0, (p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2))
    high = d + math.sqrt(max(0.0, (p2 - l2) ** 2 - 2 * phi * (p2 - l2) * (u1 - p1) + (u1 - p1) ** 2))
    return Estimate(d, low, high, n, "Newcombe")


def _of_models(metric: Metric, column: Column, first: Cell, second: Cell, confidence: float) -> Estimate:
    if isinstance(metric, Mean):
        a, b = aligned(scores(metric, column, first), scores(metric, column, second))
        if np.isin(a, (0.0, 1.0)).all() and np.isin(b, (0.0, 1.0)).all():
            return paired_proportions(a == 1, b == 1, confidence)
        return bootstrap_mean(a - b, confidence=confidence)
    first_table, second_table = (part(cell[0], column.corruption) for cell in (first, second))
    assert isinstance(metric, Statistic)
    values = [metric.estimate(table) for table in (first_table, second_table)]
    half = NormalDist().inv_cdf((1 + confidence) / 2) * metric.difference_error([first_table], [second_table])
    d = values[0].value - values[1].value
    return Estimate(d, d - half, d + half, min(value.n for value in values), "bootstrap")
