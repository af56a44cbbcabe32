"""Ranks with ties: rows share a rank where a paired test on the same samples does not tell them apart."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.metrics import Mean
from robustbench_kpca.records.estimate import Values, mcnemar_counts
from robustbench_kpca.report import rows

if TYPE_CHECKING:
    from robustbench_kpca.report.board import Board
    from robustbench_kpca.report.board_spec import Column

ALPHA = 0.05
MOST_TESTS = 1_000
"""Tests that are made one by one; beyond them ranks are by value alone, but for scores of 0 and 1."""


def ranks(board: "Board") -> dict[str, int | None]:
    """Return the rank of every row: 1 + the number of rows that are clearly better in the ranked column.

    None for a row without a number, and for one training out of several, which is compared with none.

    Clearly better is what `Board.told_apart` says, here for all pairs. Where they would be more than `MOST_TESTS` and
    cannot be tested at once, a rank is 1 + the number of rows with better values.
    """
    column = next(column for column in board.spec.column if column.title == board.spec.rank_by)
    compared = (title for title in board.ranked() if not board.is_alone(title, column))
    found = {title: one.value for title in compared if (one := board.estimate(title, column))}
    order, values = list(found), np.array(list(found.values()))
    p_values = _at_once(board, column, order)
    if p_values is None and len(order) * (len(order) - 1) // 2 <= MOST_TESTS:
        p_values = _one_by_one(board, column, order)
    ranked: dict[str, int | None] = dict.fromkeys(board.ranked())
    for place, title in enumerate(order):
        ahead = int(np.flatnonzero(values[: place + 1] == values[place])[0])  # rows with better values
        if p_values is not None:
            ahead = int((p_values[:ahead, place] < board.level(title, column)).sum())
        ranked[title] = 1 + ahead
    return ranked


def _at_once(board: "Board", column: "Column", order: Sequence[str]) -> Values | None:
    """Return McNemar's p-values of all pairs; None where rows are not single models with scores of 0 and 1."""
    metric = board.metrics[column.title]
    cells = [board.trainings(title, column) for title in order]
    single = all(len(row.models) == 1 for row in board.ranked_rows() if row.title in order)
    if not isinstance(metric, Mean) or not single or any(len(cell) != 1 for cell in cells):
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
