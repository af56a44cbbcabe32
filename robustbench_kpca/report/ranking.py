"""Ranks with ties: rows share a rank where a paired test on the same samples finds neither better."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.metrics import Mean, Metric, Paired
from robustbench_kpca.records.estimate import Values, mcnemar_counts
from robustbench_kpca.records.record import Record
from robustbench_kpca.report import rows
from robustbench_kpca.report.board_spec import Column

MOST_TESTS = 1_000
"""Tests that are made one by one; beyond them ranks are by value alone, but for scores of 0 and 1."""


@dataclass(frozen=True)
class Ranking:
    """The ranks of a board.

    Attributes:
        ranks: by row title, 1 + the number of rows that are clearly better.
        places: by row title, the first and the last place that it can have.
        sizes: by row title, the number of rows that are compared with one another; empty where all are.
        by_value: whether both are by value alone, since there were too many tests.
    """

    ranks: dict[str, int | None]
    places: dict[str, tuple[int, int]]
    sizes: dict[str, int]
    by_value: bool

    def place(self, title: str) -> str:
        """Write the places that a row may have: `1–3`, or `7`; `1–3 of 3` where not all rows are compared."""
        if title not in self.places:
            return "–"
        first, last = self.places[title]
        place = f"{first}–{last}" if last > first else str(first)
        return f"{place} of {self.sizes[title]}" if title in self.sizes else place


@dataclass(frozen=True)
class Group:
    """Rows that are compared with one another in the ranked column, best first.

    Attributes:
        values: their numbers by row title.
        level: the p-value below which two of them differ beyond chance.
        p_values: p-values of all pairs, in this order; None where there are too many to test.
    """

    values: Mapping[str, float]
    level: float
    p_values: Values | None


def ranking(titles: Sequence[str], groups: Sequence[Group]) -> Ranking:
    """Return the rank of every row: 1 + the number of rows of its group that are clearly better.

    Only rows of one group are compared, so rows of several trainings and rows of one have ranks of their own. None for
    a row that is in no group.

    Clearly better is what `Board.beats` says, here for all pairs. Where they were too many to test, a rank is 1 +
    the number of rows with better values.
    """
    ranks: dict[str, int | None] = dict.fromkeys(titles)
    places: dict[str, tuple[int, int]] = {}
    for group in groups:
        values = np.array(list(group.values.values()))
        for place, title in enumerate(group.values):
            equal = np.flatnonzero(values == values[place])
            ahead, behind = int(equal[0]), len(values) - 1 - int(equal[-1])  # rows with better values, with worse ones
            if group.p_values is not None:
                behind = int((group.p_values[place, len(values) - behind :] < group.level).sum())
                ahead = int((group.p_values[:ahead, place] < group.level).sum())
            ranks[title], places[title] = 1 + ahead, (1 + ahead, len(values) - behind)
        places |= _in_order({title: places[title] for title in group.values})
    compared = [group for group in groups if len(group.values) > 1]
    sizes = {title: len(group.values) for group in compared for title in group.values} if len(compared) > 1 else {}
    return Ranking(ranks, places, sizes, any(group.p_values is None for group in groups))


def _in_order(places: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Widen places, best row first, until none begins later, or ends later, than that of a row with a worse value."""
    firsts, lasts = zip(*places.values(), strict=True)
    first = np.minimum.accumulate(firsts[::-1])[::-1]
    return dict(zip(places, zip(first.tolist(), np.maximum.accumulate(lasts).tolist(), strict=True), strict=True))


def p_values_of_all(
    metric: Metric | None,
    column: Column,
    trainings: Mapping[str, Sequence[list[Record]]],
    paired: Callable[[str, str, Column], Paired | None],
) -> Values | None:
    """Return the p-values of all pairs of rows, in this order; None where there are more than `MOST_TESTS` to make.

    It is 1 where the test is over fewer seeds than the rows have, and in these the first row is not better.

    Args:
        trainings: the records of each row there, by its title.
        paired: compares two rows in a column; None where they cannot be compared.
    """
    at_once = _at_once(metric, column, trainings.values())
    if at_once is not None or len(trainings) * (len(trainings) - 1) // 2 > MOST_TESTS:
        return at_once
    p_values = np.ones((len(trainings), len(trainings)))
    for place, title in enumerate(trainings):
        for above, better in enumerate(list(trainings)[:place]):
            duel = paired(better, title, column)
            if metric is not None and duel is not None and metric.better(duel.first, duel.second):
                p_values[above, place] = duel.p_value
    return p_values


def _at_once(metric: Metric | None, column: Column, cells: Collection[Sequence[list[Record]]]) -> Values | None:
    """Return McNemar's p-values of all pairs; None where rows are not of one training with scores of 0 and 1."""
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
