"""Which attribute of its models decides a board, and which does not."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise, product

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.lead import ends

ATTRIBUTES = {
    "adversarial": "adversarial training", "training": "the training", "attention": "the attention",
    "backbone": "the backbone",
}  # fmt: skip
"""Fields of `Described`, and what they are called in a sentence."""
Values = Mapping[str, float]
"""Numbers by the title of their row."""


def separation(board: Board) -> str:
    """Say which attribute of the models decides the ranked column, and which do not; empty where none decides.

    An attribute decides if it puts all rows into groups of several, and every row of a group is clearly better than
    every row of the next (`Board.beats`). Another one does not if, in each of these groups, the ranges of its own
    groups overlap.
    """
    column = next(column for column in board.spec.column if column.title == board.spec.rank_by)
    values = {title: number.value for title in board.ranked() if (number := board.estimate(title, column)) is not None}
    groups = {name: _groups(board, values, name) for name in ATTRIBUTES}
    deciding = next((name for name in ATTRIBUTES if _decides(board, column, groups[name])), "")
    if not deciding:
        return ""
    parts = groups[deciding]
    others = [ATTRIBUTES[name] for name in ATTRIBUTES if all(_overlap(board, part, name) for part in parts.values())]
    unit = metric_for(column.metric).unit
    unit = replace(unit, digits=0) if unit.points else unit
    ranges = {value: ends(part.values(), unit) for value, part in parts.items()}
    if deciding == "adversarial":
        best, worst = ranges.values()
        text = f"{best} against {worst}" if next(iter(ranges)) == "True" else f"{best} against {worst} with it"
    else:
        text = " against ".join(f"{value} {shown}" for value, shown in ranges.items())
    unlike = f"; {' and '.join(others)} {'do' if len(others) > 1 else 'does'} not" if others else ""
    return f"{column.title}: {ATTRIBUTES[deciding]} decides: {text}{unlike}."


def _groups(board: Board, values: Values, name: str) -> dict[str, Values]:
    """Return rows by the value of an attribute, in the order of `values`; nothing where a row does not state it."""
    models = {row.title: row.models[0] for row in board.spec.rows}
    stated = {title: getattr(board.spec.described(models[title]), name) for title in values}
    if None in stated.values():
        return {}
    return {
        str(value): {title: values[title] for title in values if stated[title] == value}
        for value in dict.fromkeys(stated.values())
    }


def _decides(board: Board, column: Column, groups: Mapping[str, Values]) -> bool:
    if len(groups) < 2 or min(map(len, groups.values())) < 2:
        return False
    pairs = [pair for first, second in pairwise(groups.values()) for pair in product(first, second)]
    return all(board.beats(better, worse, column) for better, worse in pairs)


def _overlap(board: Board, values: Values, name: str) -> bool:
    ranges = [(min(part.values()), max(part.values())) for part in _groups(board, values, name).values()]
    return len(ranges) > 1 and all(max(a[0], b[0]) <= min(a[1], b[1]) for a, b in combinations(ranges, 2))
