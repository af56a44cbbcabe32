"""What a board found, in a line: who is best and who is last, and what the correction of a protocol changes."""

from collections.abc import Mapping, Sequence

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.spoken import named

LITERAL, CORRECTED = ", literal", ", corrected"
"""Ends of the titles of two columns: an attack as its authors ran it, and as it is meant."""
FIRST, LAST = 5, 1
"""So many rows beside the first, and beside the last, are named; more are counted."""


def lead(board: Board, names: Mapping[str, str]) -> str:
    """Say who is best and who is last; empty where no rows are compared. `names`: of rows, as people say them."""
    column = next(column for column in board.spec.column if column.title == board.spec.rank_by)
    values = {title: number.value for title in board.ranked() if (number := board.estimate(title, column)) is not None}
    if not values or (len(values) > 1 and not board.compared[column.title]):
        return ""
    numbers = {title: metric_for(column.metric).unit.text(value) for title, value in values.items()}
    best = next(iter(values))
    alike = [title for title in values if (board.planned(title) > 1) == (board.planned(best) > 1)]
    *_, last = alike
    first = [title for title in alike[1:] if board.ranks[title] == board.ranks[best] == 1]
    if len(first) == len(alike) - 1 > 0:
        ends = f"{named(names, best)} {numbers[best]} to {named(names, last)} {numbers[last]}"
        said = f"no row is clearly better than another ({ends})"
    else:
        said = f"best {named(names, best)} {numbers[best]}{_beside(first, names, 'better', FIRST)}"
        if len(alike) > 1 and last not in first:
            others = [title for title in alike[1:-1] if board.ranks[title] is not None and title not in first]
            worst = [title for title in others if not board.beats(title, last, column)]
            said += f"; last {named(names, last)} {numbers[last]}{_beside(worst, names, 'worse', LAST)}"
    if apart := len(values) - len(alike):
        kind = "one training" if board.planned(best) > 1 else "several trainings"
        said += f"; not compared: {apart} row{'s' * (apart > 1)} of {kind}"
    return f"{column.title}: {said}."


def _beside(titles: Sequence[str], names: Mapping[str, str], than: str, most: int) -> str:
    """Name the rows that share a place, at most so many; names may hold commas."""
    rows = "; ".join(named(names, title) for title in titles) if len(titles) <= most else f"{len(titles)} other rows"
    return f" (not clearly {than} than {rows})" if titles else ""


def contrast(board: Board) -> str:
    """Say between which numbers all rows are as the authors ran the attack of the ranked column, and corrected.

    Rows count whose trainings all have both numbers. Empty where the column is not a corrected one.
    """
    title = board.spec.rank_by.removesuffix(CORRECTED)
    pair = [column for end in (LITERAL, CORRECTED) for column in board.spec.column if column.title == title + end]
    whole = [
        row.title
        for row in board.spec.rows
        if all(len(board.trainings(row.title, column)) == len(row.models) for column in pair)
    ]
    spans = []
    for column in pair:
        values = [number.value for row in whole if (number := board.estimate(row, column)) is not None]
        unit = metric_for(column.metric).unit
        ends = [unit.text(value) for value in (min(values), max(values))] if values else []
        spans += [ends[-1] if len(set(ends)) == 1 else f"{unit.number(min(values))} to {ends[-1]}"] if ends else []
    if len(spans) < 2:
        return ""
    what = metric_for(pair[0].metric).title
    return f"{title}, {what[0].lower()}{what[1:]}: {spans[0]} as the authors ran it, {spans[1]} corrected."
