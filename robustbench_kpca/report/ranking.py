"""Ranks with ties: rows share a rank where a paired test on the same samples does not tell them apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.metrics import Mean
from robustbench_kpca.records.estimate import Values, mcnemar_counts
from robustbench_kpca.report import rows

if TYPE_CHECKING:
    from robustbench_kpca.report.board import Board
    from robustbench_kpca.report.board_spec import Column

MOST_TESTS = 1_000
"""Tests that are made one by one; beyond them ranks are by value alone, but for scores of 0 and 1."""


@dataclass(frozen=True)
class Ranking:
    """The ranks of a board, by row title, and whether they are by value alone, since there were too many tests."""

    ranks: dict[str, int | None]
    by_value: bool


def ranking(board: "Board") -> Ranking:
    """Return the rank of every row: 1 + the number of rows that are clearly better in the ranked column.

    Only rows that are compared with one another are counted, so rows of several trainings and rows of one have ranks of
    their own. None for a row without a number, and for one training out of several, which is compared with none. All
    are None where the column compares none (`Column.untested`).

    Clearly better is what `Board.told_apart` says, here for all pairs. Where they are more than `MOST_TESTS` and cannot
    be tested at once, a rank is 1 + the number of rows with better values.
    """
    column = next(column for column in board.spec.column if column.title == board.spec.rank_by)
    ranked: dict[str, int | None] = dict.fromkeys(board.ranked())
    by_value = False
    for group in board.compared[column.title]:
        order = [title for title in ranked if title in group]
        values = np.array([group[title] for title in order])
        p_values = _p_values(board, column, order)
        by_value |= p_values is None
        level = board.level(order[0], column)
        for place, title in enumerate(order):
            ahead = int(np.flatnonzero(values[: place + 1] == values[place])[0])  # rows with better values
            if p_values is not None:
                ahead = int((p_values[:ahead, place] < level).sum())
            ranked[title] = 1 + ahead
    return Ranking(ranked, by_value)


def _p_values(board: "Board", column: "Column", order: Sequence[str]) -> Values | None:
    """Return the p-values of all pairs of rows, in this order; None where there are too many to test."""
    at_once = _at_once(board, column, order)
    if at_once is not None or len(order) * (len(order) - 1) // 2 > MOST_TESTS:
        return at_once
    return _one_by_one(board, column, order)


def _at_once(board: "Board", column: "Column", order: Sequence[str]) -> Values | None:
    """Return McNemar's p-values of all pairs; None where rows are not of one training with scores of 0 and 1."""
    metric = board.metrics[column.title]
    cells = [board.trainings(title, column) for title in order]
    if not isinstance(metric, Mean) or any(len(cell) != 1 for cell in cells):
        return None
    ids: NDArray[np.object_] | None = None
    table = []
    for (cell,) in cells:
        scored = rows.scores(metric, column, cell)
        ids = scored.samples if ids is None else ids
        if not np.array_equal(scored.samples, ids) or not np.isin(scored.values, (0.0, 1.0)).all():
            return None
        table.append(scored.values)
    right = np.array(table)
    only = (right @ (1 - right).T).round().astype(np.int64)  # only[i, j]: samples that row i alone has right
    return mcnemar_counts(only, only.T)


def _one_by_one(board: "Board", column: "Column", order: Sequence[str]) -> Values:
    """Return the p-values of all pairs, rows in this order; 1 where two rows cannot be compared."""
    p_values = np.ones((len(order), len(order)))
    for place, title in enumerate(order):
        for above, better in enumerate(order[:place]):
            duel = board.paired(better, title, column)
            p_values[above, place] = 1.0 if duel is None else duel.p_value
    return p_values
