"""Which difference a comparison of two rows would have found with 80 %, with these trainings and samples."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from robustbench_kpca._core.web.marks import quoted
from robustbench_kpca.metrics import Mean, Scores, aligned, metric_for
from robustbench_kpca.metrics.shared.metric import scores_error
from robustbench_kpca.metrics.shared.power import ALPHA, POWER, detectable_difference
from robustbench_kpca.report import rows

if TYPE_CHECKING:
    from robustbench_kpca.report.board import Board
    from robustbench_kpca.report.board_spec import Column


@dataclass(frozen=True)
class Detectable:
    """A difference in a column that one two-sided test finds with 80 %.

    Attributes:
        column: its title.
        trainings: of each row; 1 where single models are compared.
        samples: their number.
        difference: not scaled, so of accuracies in [0, 1].

    """

    column: str
    trainings: int
    samples: int
    difference: float


def detectable(
    board: "Board", column: "Column", titles: tuple[str, ...] = (), alpha: float = ALPHA
) -> Detectable | None:
    """Return what would have been found at this level between rows of the board, or between those of these titles.

    Rows of several trainings are taken where there are two of them, else rows of one model each. The spread between
    trainings is that of all rows of the column, also where two are named: two trainings or three hardly show the spread
    of their own recipe. The error over samples is the median over rows that are neighbours in the ranking, since these
    are the hardest to tell apart, or that between the rows named. A row that `is_alone` is compared with none, so it
    does not count. None where rows are not compared in the column, where there are no two rows, where the metric is no
    mean over samples, or where nothing is known of the spread: of one sample, or where rows and trainings agree on
    every sample.
    """
    metric = board.metrics[column.title]
    if not isinstance(metric, Mean) or column.untested:
        return None
    every = {title: found for title in board.ranked() if (found := _scored(board, metric, column, title))}
    several = {title: found for title, found in every.items() if len(found) > 1}
    single = {title: found for title, found in every.items() if len(found) == 1}
    compared = several if len(several) > 1 or titles else single
    chosen = [found for title, found in compared.items() if title in (titles or compared)]
    if len(chosen) < 2:
        return None
    error = float(np.median([scores_error(one, other) for one, other in itertools.pairwise(chosen)]))
    if not np.isfinite(error):
        return None
    fewest, samples = min(map(len, chosen)), len(chosen[0][0].values)
    spread = _spread(list(several.values())) if fewest > 1 else 0.0
    difference = detectable_difference(fewest, spread, error, alpha=alpha)
    return Detectable(column.title, fewest, samples, difference) if difference > 0 else None


def _scored(board: "Board", metric: Mean, column: "Column", title: str) -> list[Scores]:
    """Return the scores of the trainings of a row; none of a row that `is_alone`."""
    if board.is_alone(title, column):
        return []
    return [
        rows.scores(metric, column, cell) for cell, _ in rows.measured(metric, column, board.trainings(title, column))
    ]


def _spread(several: Sequence[Sequence[Scores]]) -> float:
    """Return the standard deviation between the numbers of trainings of one recipe, pooled over recipes.

    Scores are x_{s,i} of training s and sample i. With k trainings in a row and means m_s over n samples, the variance

        sum over rows, s of (m_s - mean of m)^2 / sum over rows of (k - 1)

    is not below what chance in single samples gives m_s, v / n, where v is the variance of x_{s,i} that is left without
    the means of trainings and of samples. Below it, the few trainings agree by chance.
    """
    freedom = sum(len(row) - 1 for row in several)
    between = left = 0.0
    for row in several:
        scores = np.stack([aligned(row[0], one)[1] for one in row])
        means = scores.mean(1, keepdims=True)
        between += float(((means - means.mean()) ** 2).sum())
        left += float(((scores - means - scores.mean(0) + scores.mean()) ** 2).sum())
    samples = len(several[0][0].values)
    return float(np.sqrt(max(between, left / max(samples - 1, 1) / samples) / freedom))


def power_of(board: "Board") -> str:
    """Say it of every column; empty where nothing can be compared."""
    found = [one for column in board.columns if (one := detectable(board, column)) is not None]
    if not found:
        return ""
    metrics = {column.title: column.metric for column in board.columns}
    shown = [
        f"{quoted(one.column)}: {metric_for(metrics[one.column]).unit.gap(one.difference)} "
        f"({_trainings(one)}{one.samples:,} samples)"
        for one in found
    ]
    return (
        f"Power: the true difference between two rows that one two-sided test (p below {ALPHA}, not adjusted for "
        f"several tests) would have found with a probability of {100 * POWER:.0f} %, if rows differ from sample to "
        f"sample, and trainings of a recipe from one another, as these here do. {'; '.join(shown)}."
    )


def _trainings(one: Detectable) -> str:
    return f"{one.trainings} trainings a row, " if one.trainings > 1 else ""
