"""The answer to a board's question from its numbers: whether a method helps, and whether its control does the same.

Nothing is written here but what a test or an audit says. Where it says nothing, the sentence says so.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from robustbench_kpca.metrics import Metric, metric_for
from robustbench_kpca.metrics.shared.power import ALPHA, POWER
from robustbench_kpca.report.difference import difference_between
from robustbench_kpca.report.markdown import quoted
from robustbench_kpca.report.power import detectable
from robustbench_kpca.report.rows import measured

if TYPE_CHECKING:
    from robustbench_kpca.report.board import Board
    from robustbench_kpca.report.board_spec import Column, Question

UNKNOWN = "cannot be told with these trainings"
COMPARISONS = 2
"""With the baseline and with the control; all verdicts of a question together hold with 95 %."""
BOTH = "The two intervals hold together with 95 % (each has 97.5 %), and p-values are doubled."


@dataclass(frozen=True)
class _Duel:
    """One row against another: how many trainings each has, their difference and, where it was tested, the rest.

    Attributes:
        first: value of the first row; second: of the other.
        trainings: of each row, such as `3 trainings`.
        samples: their number.
        interval: of the difference, with 97.5 %.
        p_value: doubled, since there are two comparisons; None where it was not tested.
        least: the difference that would have been found with 80 %.

    """

    first: float
    second: float
    trainings: tuple[str, str]
    samples: int
    interval: tuple[float, float] | None
    p_value: float | None
    least: float | None

    @property
    def clear(self) -> bool:
        return self.p_value is not None and self.p_value < ALPHA


def answers(board: "Board") -> list[str]:
    """Return one paragraph for each question of the board, or that it is not answered yet."""
    found = ((question, answer(board, question)) for question in board.spec.question)
    return [_open(question) if sentences is None else " ".join(sentences) for question, sentences in found]


def answer(board: "Board", question: "Question") -> tuple[str, str] | None:
    """Answer a question in two parts: whether the subject helps, and whether its control does the same.

    Recipes are compared over trainings: by Welch's t-test with the error over samples (`records/trainings.py`). Both
    comparisons together hold with 95 % (Bonferroni): a p-value is doubled, and the interval and the power belong to the
    same level, so an interval without 0 and a verdict are the same. One training has no spread, so with one nothing is
    told. None where the subject or the baseline has no number.
    """
    column = next(one for one in board.spec.column if one.title == question.column)
    metric = metric_for(column.metric)
    against, control = (
        _duel(board, question.subject, other, column) for other in (question.baseline, question.ablation)
    )
    if against is None:
        return None
    audited = _audited(board, question.subject)
    second = f"{_control(question, metric, control)} {audited[0].upper()}{audited[1:]}."
    tested = against.p_value is not None or (control is not None and control.p_value is not None)
    return _helps(question, metric, against), f"{second} {BOTH}" if tested else second


def _open(question: "Question") -> str:
    names = " and ".join(quoted(one) for one in (question.subject, question.baseline))
    return f"Not answered yet: {names} do not both have a number in {quoted(question.column)}."


def _duel(board: "Board", title: str, other: str, column: "Column") -> _Duel | None:
    numbers = [board.estimate(one, column) for one in (title, other)]
    if numbers[0] is None or numbers[1] is None:
        return None
    first, second = (number.value for number in numbers if number is not None)
    metric, level = board.metrics[column.title], ALPHA / COMPARISONS
    assert metric is not None, "else there were no numbers"
    fewest = min(len(measured(metric, column, board.trainings(one, column))) for one in (title, other))
    found = board.paired(title, other, column) if fewest > 1 else None
    gap = difference_between(board, title, other, column, 1 - level) if found is not None else None
    least = detectable(board, column, (title, other), level) if found is not None else None
    return _Duel(
        first,
        second,
        (_counted(board, title, column), _counted(board, other, column)),
        numbers[0].n,
        interval=None if gap is None else (gap.low, gap.high),
        p_value=None if found is None else min(1.0, COMPARISONS * found.p_value),
        least=None if least is None else least.difference,
    )


def _counted(board: "Board", title: str, column: "Column") -> str:
    """Say how many trainings a row has, and of how many where some are missing."""
    planned = board.planned(title)
    here = len(board.trainings(title, column))
    part = f"{here} of {planned}" if here < planned else str(here)
    return f"{part} training{'s' if planned > 1 else ''}"


def _helps(question: "Question", metric: Metric, duel: _Duel) -> str:
    subject, baseline, column = (quoted(one) for one in (question.subject, question.baseline, question.column))
    start = (
        f"In {column}, on {duel.samples:,} samples, {subject} has {metric.unit.text(duel.first)} "
        f"({duel.trainings[0]}) and {baseline} {metric.unit.text(duel.second)} ({duel.trainings[1]}): "
        f"{_difference(metric, duel)}."
    )
    if duel.clear:
        return f"{start} It {'helps' if metric.better(duel.first, duel.second) else 'harms'}."
    return f"{start} Whether it helps {UNKNOWN}{_why(metric, duel)}."


def _control(question: "Question", metric: Metric, duel: _Duel | None) -> str:
    control, subject = quoted(question.ablation), quoted(question.subject)
    if duel is None:
        return f"{control}, the control, has no number in {quoted(question.column)}."
    start = (
        f"{control}, the control, has {metric.unit.text(duel.second)} ({duel.trainings[1]}); {subject} differs from it "
        f"by {_difference(metric, duel)}."
    )
    if duel.clear:
        return f"{start} So it is clearly {'better' if metric.better(duel.first, duel.second) else 'worse'}."
    return f"{start} Whether they truly differ {UNKNOWN}{_why(metric, duel)}."


def _why(metric: Metric, duel: _Duel) -> str:
    """Say why a comparison tells nothing, or which difference it would have told."""
    if duel.p_value is None:
        return ", since one training has no spread"
    if duel.least is None:
        return ""
    return (
        f"; a true difference of {metric.unit.gap(duel.least)} would have been found with a probability of "
        f"{100 * POWER:.0f} %, if trainings of a recipe spread as those of all rows here do"
    )


def _audited(board: "Board", title: str) -> str:
    """Say what the audits of a row found of masked gradients."""
    row = next(one for one in board.spec.rows if one.title == title)
    audits = board.audits(row)
    made = [audit for audit in audits if audit is not None]
    names = sorted({check.name for audit in made for check in audit.flags})
    if names:
        return f"audits of {quoted(title)} raise flags ({', '.join(names)}), so its gradients may hide something"
    if not audits or None in audits:
        return f"{quoted(title)} was not audited throughout, so whether its gradients hide anything is not known"
    quick = "quick " if any(audit.plan.level == "quick" for audit in made) else ""
    plans = sorted({(audit.plan.images, audit.plan.eps) for audit in made})
    where = ", ".join(f"{images} images at {255 * eps:g}/255" for images, eps in plans)
    where += "; a quick audit makes no black-box attack" if quick else ""
    return f"no {quick}audit of {quoted(title)} ({where}) raises a flag that its gradients hide anything"


def _difference(metric: Metric, duel: _Duel) -> str:
    """Write the difference with its sign and, where it was tested, its interval and p-value."""
    change = metric.unit.change(duel.first - duel.second)
    points = " points" if metric.unit.points else ""
    if duel.interval is None or duel.p_value is None:
        return f"{change}{points}"
    low, high = (metric.unit.change(end) for end in duel.interval)
    return f"{change} [{low}, {high}]{points} (p = {duel.p_value:.2g})"
