"""Which difference a comparison of two rows would have found with 80 %, with these trainings and samples."""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from robustbench_kpca.metrics import Mean, metric_for
from robustbench_kpca.metrics.shared.metric import scores_error
from robustbench_kpca.metrics.shared.power import ALPHA, POWER, detectable_difference
from robustbench_kpca.report import rows
from robustbench_kpca.report.markdown import quoted

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

    The spread between trainings is that of all rows together; the error over samples is the median over rows that
    are neighbours in the ranking, since these are the hardest to tell apart. Rows of several trainings are taken where
    there are two of them, else rows of one model each. A row that `is_alone` is compared with none, so it does not
    count. None where there are no two such rows, where the metric is no mean over samples, or where nothing is known of
    the spread: of one sample, or where rows and trainings agree on every sample.
    """
    metric = board.metrics[column.title]
    if not isinstance(metric, Mean):
        return None
    compared = [title for title in titles or board.ranked() if not board.is_alone(title, column)]
    found = [rows.measured(metric, column, board.trainings(title, column)) for title in compared]
    cells = [[cell for cell, _ in row] for row in found]
    several = [cell for cell in cells if len(cell) > 1]
    chosen = several if len(several) > 1 or titles else [cell for cell in cells if len(cell) == 1]
    if len(chosen) < 2:
        return None
    scored = [[rows.scores(metric, column, cell) for cell in row] for row in chosen]
    spread = np.mean([np.var([one.values.mean() for one in row], ddof=1) if len(row) > 1 else 0.0 for row in scored])
    error = float(np.median([scores_error(one, other) for one, other in itertools.pairwise(scored)]))
    if not np.isfinite(error):
        return None
    fewest, samples = min(map(len, scored)), len(scored[0][0].values)
    difference = detectable_difference(fewest, float(np.sqrt(spread)), error, alpha=alpha)
    return Detectable(column.title, fewest, samples, difference) if difference > 0 else None


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
        f"several tests) would have found with a probability of {100 * POWER:.0f} %, if rows spread as these here do. "
        f"{'; '.join(shown)}."
    )


def _trainings(one: Detectable) -> str:
    return f"{one.trainings} trainings a row, " if one.trainings > 1 else ""
