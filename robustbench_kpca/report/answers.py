"""Two sentences that answer a board's question from its numbers: whether a method helps, and whether its twin does.

Nothing is written here but what a test or an audit says. Where it says nothing, the sentence says so.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from robustbench_kpca.metrics import Metric, metric_for
from robustbench_kpca.metrics.shared.power import ALPHA
from robustbench_kpca.metrics.shared.unit import PERCENT
from robustbench_kpca.records.estimate import holm
from robustbench_kpca.report.power import detectable

if TYPE_CHECKING:
    from robustbench_kpca.report.board import Board
    from robustbench_kpca.report.board_spec import Column, Question

UNKNOWN = "cannot be told with these seeds"


@dataclass(frozen=True)
class _Duel:
    """One row against another: values, the p-value (None: not tested) and what would have been found."""

    first: float
    second: float
    p_value: float | None
    least: float | None

    def clear(self, adjusted: float | None) -> bool:
        return adjusted is not None and adjusted < ALPHA


def answers(board: "Board") -> list[str]:
    """Return one paragraph of two sentences for each question of the board."""
    return [" ".join(answer(board, question)) for question in board.spec.question]


def answer(board: "Board", question: "Question") -> tuple[str, str]:
    """Answer a question in two sentences: whether the subject helps, and whether its twin does the same.

    Recipes are compared over trainings: by Welch's t-test with the error over samples (`records/trainings.py`),
    Holm-adjusted over the two comparisons. One training has no spread, so with one nothing is told.
    """
    column = next(one for one in board.spec.column if one.title == question.column)
    metric = metric_for(column.metric)
    against, twin = (_duel(board, question.subject, other, column) for other in (question.baseline, question.ablation))
    tested = [one.p_value for one in (against, twin) if one is not None and one.p_value is not None]
    adjusted = dict(zip(tested, holm(tested), strict=True))
    return (
        _helps(board, question, column, metric, against, adjusted),
        f"{_twin(question, metric, twin, adjusted)}; {_audited(board, question.subject)}.",
    )


def _duel(board: "Board", title: str, other: str, column: "Column") -> _Duel | None:
    numbers = [board.estimate(one, column) for one in (title, other)]
    if numbers[0] is None or numbers[1] is None:
        return None
    fewest = min(len(board.trainings(one, column)) for one in (title, other))
    found = board.paired(title, other, column) if fewest > 1 else None
    least = detectable(board, column, (title, other)) if fewest > 1 else None
    return _Duel(
        numbers[0].value, numbers[1].value, None if found is None else found.p_value,
        None if least is None else least.difference,
    )  # fmt: skip


def _helps(
    board: "Board", question: "Question", column: "Column", metric: Metric, duel: _Duel | None,
    adjusted: dict[float, float],
) -> str:  # fmt: skip
    if duel is None:
        return f"Whether {question.subject} helps cannot be told: it or {question.baseline} has no {question.column}."
    counts = [len(board.trainings(title, column)) for title in (question.subject, question.baseline)]
    estimate = board.estimate(question.subject, column)
    n = estimate.n if estimate else 0
    start = (
        f"{question.column}: {question.subject} reaches {_value(metric, duel.first)} and {question.baseline} "
        f"{_value(metric, duel.second)} ({counts[0]} and {counts[1]} trainings, {n:,} samples), "
        f"{_difference(metric, duel)}"
    )
    p = None if duel.p_value is None else adjusted[duel.p_value]
    if duel.clear(p):
        return f"{start} (p = {p:.2g}): it {'helps' if metric.better(duel.first, duel.second) else 'harms'}."
    return f"{start}: whether it helps {UNKNOWN}{_why(metric, duel, p)}."


def _twin(question: "Question", metric: Metric, duel: _Duel | None, adjusted: dict[float, float]) -> str:
    if duel is None:
        return f"{question.ablation}, its twin without the method, was not evaluated"
    start = f"{question.ablation}, its twin without the method, reaches {_value(metric, duel.second)}"
    p = None if duel.p_value is None else adjusted[duel.p_value]
    if duel.clear(p):
        better = metric.better(duel.first, duel.second)
        return f"{start}, clearly {'worse' if better else 'better'} than {question.subject} (p = {p:.2g})"
    return f"{start}, and whether it does the same {UNKNOWN}{_why(metric, duel, p)}"


def _why(metric: Metric, duel: _Duel, p: float | None) -> str:
    """Say why a comparison tells nothing, in brackets."""
    if p is None:
        return " (one training has no spread)"
    least = "" if duel.least is None else f"; {_gap(metric, duel.least)} would have been found with 80 %"
    return f" (p = {p:.2g}{least})"


def _audited(board: "Board", title: str) -> str:
    """Say what the audits of a row found of masked gradients."""
    row = next(one for one in board.spec.rows if one.title == title)
    audits = board.audits(row)
    made = [audit for audit in audits if audit is not None]
    names = sorted({check.name for audit in made for check in audit.flags})
    if names:
        return f"audits of {title} raise flags ({', '.join(names)}), so its gradients may hide something"
    if not audits or None in audits:
        return f"{title} was not audited throughout, so whether its gradients hide anything is not known"
    return f"no audit of {title} raises a flag that its gradients hide anything"


def _value(metric: Metric, value: float) -> str:
    return metric.unit.text(value)


def _difference(metric: Metric, duel: _Duel) -> str:
    gap = duel.first - duel.second
    return f"{_gap(metric, abs(gap))} {'more' if gap > 0 else 'less'}" if gap else "no difference"


def _gap(metric: Metric, difference: float) -> str:
    number = metric.unit.number(difference)
    return f"{number} points" if metric.unit is PERCENT else number
