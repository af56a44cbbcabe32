"""Which difference a comparison of two rows would have found with 80 %, with these trainings and samples."""

import itertools
from typing import TYPE_CHECKING

import numpy as np

from robustbench_kpca._core.web.marks import quoted
from robustbench_kpca.metrics import Mean, metric_for
from robustbench_kpca.metrics.shared.power import ALPHA, POWER, Detectable, detectable_difference
from robustbench_kpca.records.estimate import Values
from robustbench_kpca.records.trainings import OverSamples, compare, residual_variance
from robustbench_kpca.report import rows

if TYPE_CHECKING:
    from robustbench_kpca.report.board import Board
    from robustbench_kpca.report.board_spec import Column


def detectable(
    board: "Board", column: "Column", titles: tuple[str, ...] = (), alpha: float = ALPHA
) -> Detectable | None:
    """Return what would have been found at this level between rows of the board, or between those of these titles.

    Rows of several trainings are compared where there are two; otherwise rows of one model each. It is the median over
    rows that are neighbours in the ranking, since these are the hardest to tell apart, or what is found between the two
    rows named. The spread between trainings is that of the test: of all rows that have the seeds which two share, or of
    the two alone where they spread more. A row that `is_alone` is compared with none, so it does not count. None
    where rows are not compared in the column, where there are no two rows, where the metric is no mean over samples, or
    where nothing is known of the spread: of one sample, or where rows and trainings agree on every sample.
    """
    metric = board.metrics[column.title]
    if not isinstance(metric, Mean) or column.untested:
        return None
    counts = {title: len(_scored(board, metric, column, title)) for title in board.ranked()}
    several = [title for title, count in counts.items() if count > 1]
    single = [title for title, count in counts.items() if count == 1]
    compared = several if len(several) > 1 or titles else single
    pairs = itertools.pairwise(title for title in compared if title in (titles or compared))
    gaps = [gap for pair in pairs if (gap := _between(board, metric, column, pair, alpha)) is not None]
    if not gaps:
        return None
    trainings, samples = min(gap.trainings for gap in gaps), gaps[0].samples
    return Detectable(trainings, samples, float(np.median([gap.difference for gap in gaps])))


def _between(board: "Board", metric: Mean, column: "Column", pair: tuple[str, str], alpha: float) -> Detectable | None:
    """Return what would have been found between two rows."""
    first, second = (board.seeds(title, column) for title in pair)
    cells = [_scored(board, metric, column, title) for title in pair]
    n = len(rows.scores(metric, column, cells[0][0]).values)
    if len(cells[0]) == 1:
        shape, spread, samples = (2, 1), 0.0, rows.over_samples(metric, column, *cells)
    else:
        both = rows.shared(metric, column, first, second, board.beside(*pair, column))
        if both is None:
            return None
        numbers, samples = both
        numbers = numbers[: compare(numbers, samples).recipes]
        shape, spread = numbers.shape, _spread(numbers, samples)
    if not np.isfinite(samples.variance):
        return None
    difference = detectable_difference(shape, spread, samples, alpha=alpha)
    return Detectable(shape[1], n, difference) if difference > 0 else None


def _scored(board: "Board", metric: Mean, column: "Column", title: str) -> list[rows.Cell]:
    """Return the trainings of a row that have a number; none of a row that `is_alone`."""
    if board.is_alone(title, column):
        return []
    return [cell for cell, _ in rows.measured(metric, column, board.trainings(title, column))]


def _spread(numbers: Values, samples: OverSamples) -> float:
    """Return the standard deviation between trainings, beside seeds, of numbers of shape (rows, seeds).

    It is not below what chance in single samples gives one training: B MS_res / (B n) / 2 of the differences of two
    rows. Below it, the few trainings agree by chance.
    """
    return float(np.sqrt(max(residual_variance(numbers), numbers.shape[1] * samples.shared / 2)))


def power(board: "Board", column: "Column") -> Detectable | None:
    """Return what `detectable` finds between all rows; computed once for each board."""
    if column.title not in board.detectable:
        board.detectable[column.title] = detectable(board, column)
    return board.detectable[column.title]


def power_of(board: "Board") -> str:
    """Say it of every column; empty where nothing can be compared."""
    gaps = [
        f"{quoted(column.title)}: {metric_for(column.metric).unit.gap(gap.difference)} "
        f"({f'{gap.trainings} seeds, ' if gap.trainings > 1 else ''}{gap.samples:,} samples)"
        for column in board.columns
        if (gap := power(board, column)) is not None
    ]
    if not gaps:
        return ""
    cards = " An answer says it of its own rows, with p below half of that." if board.spec.question else ""
    return (
        f"Power: the smallest true difference between two rows next to each other that a test would find with a "
        f"probability of {100 * POWER:.0f} %. The test is two-sided (p below {ALPHA}, not adjusted for several tests), "
        f"rows and trainings are taken to vary as these do, and the median of all such pairs is shown.{cards} "
        f"{'; '.join(gaps)}."
    )
