"""The answer to a board's question from its numbers: whether a method helps, and whether its control does the same.

Nothing is written here but what a test or an audit says. Where it says nothing, the answer says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from robustbench_kpca._core.web.marks import quoted
from robustbench_kpca.metrics import Metric, metric_for
from robustbench_kpca.metrics.shared.power import ALPHA
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.audit_versions import inactive
from robustbench_kpca.records.estimate import holm
from robustbench_kpca.report.power import detectable

if TYPE_CHECKING:
    from robustbench_kpca.report.board import Board
    from robustbench_kpca.report.question import Question

HELPS, HURTS, LESS = "helps", "hurts", "worse than its control"
EQUIVALENT, SAME, OPEN = "equivalent", "no difference found", "not yet"
"""Verdicts. It helps only if it beats baseline and control; equivalent is said of subject and baseline."""
_MOST_DECIDED_FIRST = (HELPS, HURTS, LESS, EQUIVALENT, SAME, OPEN)
NONE, RAISED, UNKNOWN = "no audit flag", "audit flags raised", "not audited throughout"
"""What audits found of masked gradients."""


@dataclass(frozen=True)
class Duel:
    """The subject of a question against another row; all numbers are in the metric's own scale.

    Attributes:
        other: title of the other row.
        value: number of the other row.
        trainings: how many trainings of the other row have a number.
        planned: how many trainings of the other row there are to be.
        difference: subject minus other, over the seeds that both rows have.
        low, high: interval of the difference: 97.5 %, or 95 % in a question without a control. None where nothing was
            tested: a single training has no spread, and rows are compared on at least two seeds that both have.
        p_value: of the difference, times the comparisons that the question makes, or adjusted by Holm for its family;
            None as `low`.
        inner_low, inner_high: 95 % interval of the difference, which decides on equivalence; None as `low`.
        seeds: how many seeds both rows have; None as `low`.
        rows: how many rows the spread between seeds is estimated from: all with these seeds, or the two compared ones
            if they spread clearly more than the others; None as `low`.
        unattacked: the difference of the same rows without the attack, on the same samples; None where nothing attacks.
        least: the smallest true difference that this comparison finds with a probability of 80 %, if trainings spread
            as those of all rows do; None where that is not known.
    """

    other: str
    value: float
    trainings: int
    planned: int
    difference: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    inner_low: float | None = None
    inner_high: float | None = None
    seeds: int | None = None
    rows: int | None = None
    least: float | None = None
    unattacked: float | None = None

    def within(self, margin: float) -> bool:
        """Whether the difference is shown to lie between -margin and margin: two one-sided tests (Schuirmann, 1987)."""
        low, high = self.inner_low, self.inner_high
        return low is not None and high is not None and -margin < low and high < margin

    def sign(self, metric: Metric) -> int:
        """Return 1 if the subject is clearly better, -1 if it is clearly worse, else 0."""
        if self.p_value is None or self.p_value >= ALPHA:
            return 0
        return 1 if metric.better(self.difference, 0.0) else -1


@dataclass(frozen=True)
class Answer:
    """What the numbers say to a question.

    Attributes:
        verdict: `HELPS`, `HURTS`, `LESS`, `EQUIVALENT`, `SAME` or `OPEN`.
        value: number of the subject; None if it has none.
        trainings: how many trainings of the subject have a number.
        planned: how many trainings of the subject there are to be.
        samples: how many samples the number of the subject is of.
        data: name of their data set, as records have it; empty without a record.
        against: the subject against its baseline; None where either has no number.
        control: the subject against its control; None where either has no number, and without a control.
        idle: that its audits found the mechanism of the subject inactive, in words; empty if they did not.
        comparisons: how many are adjusted together, over all questions of the family; 0 without a family.
        audited: what audits of the subject found: `NONE` with the eps, `RAISED` or `UNKNOWN`.
        audit: the same in a sentence.
    """

    question: "Question"
    metric: Metric
    verdict: str
    value: float | None
    trainings: int
    planned: int
    samples: int
    data: str
    against: Duel | None
    control: Duel | None
    audited: str
    audit: str
    idle: str = ""
    comparisons: int = 0

    @property
    def has_all_trainings(self) -> bool:
        """Whether every planned training of the rows that are compared has a number."""
        rows = (self, self.against, self.control)[: 1 + len(self.question.others)]
        return all(row is not None and row.trainings == row.planned for row in rows)

    @property
    def verdict_with_margin(self) -> str:
        """The verdict, with the margin within which rows are equivalent."""
        if self.verdict != EQUIVALENT:
            return self.verdict
        return f"{self.verdict} within ± {self.question.margin:g}{' points' if self.metric.unit.points else ''}"

    @property
    def decidedness(self) -> tuple[int, float]:
        """A key that sorts the most decided answers first: by verdict, then by p-value."""
        p_value = None if self.against is None else self.against.p_value
        return _MOST_DECIDED_FIRST.index(self.verdict), 1.0 if p_value is None else p_value

    @classmethod
    def of(cls, content: Mapping[str, Any], question: "Question", metric: Metric) -> "Answer":
        """Return the answer whose `content` this is."""
        own = {each.name: content[each.name] for each in fields(cls) if each.name in content}
        duels = {role: content[role] and Duel(**content[role]) for role in ("against", "control")}
        return cls(question=question, metric=metric, **(own | duels))

    def content(self) -> dict[str, Any]:
        """Return the fields for other programs; the metric is of the column."""
        content = asdict(self)
        del content["question"], content["metric"]
        for name in ("idle", "comparisons"):
            if not content[name]:
                del content[name]
        return self.question.model_dump() | content


def answers(board: "Board") -> list[Answer]:
    """Answer each question of the board."""
    return [answer(board, question) for question in board.spec.question]


def in_families(boards: Mapping[str, "Board"], planned: Mapping[str, int]) -> dict[str, "Board"]:
    """Return boards whose questions have p-values that are adjusted by Holm (1979) within each family of the pack.

    Args:
        boards: all of a pack, by name.
        planned: family -> how many comparisons its plan has. Those that are not made count with p = 1.
    """
    adjusted: dict[str, dict[Question, tuple[int, float]]] = {}
    for family, comparisons in planned.items():
        raw = {
            (name, question): 1.0 if duel is None or duel.p_value is None else duel.p_value
            for name, board in boards.items()
            for question in board.spec.question
            if question.family == family
            for duel in (_duel(board, question, question.baseline),)
        }
        p_values = holm([*raw.values(), *[1.0] * (comparisons - len(raw))])
        for (name, question), p_value in zip(raw, p_values, strict=False):
            adjusted.setdefault(name, {})[question] = comparisons, p_value
    return {name: replace(board, adjusted=adjusted.get(name, {})) for name, board in boards.items()}


def answer(board: "Board", question: "Question") -> Answer:
    """Answer a question.

    Recipes are compared over trainings: seeds are blocks, samples a second source (`records/trainings.py`). With a
    control, both comparisons together hold with 95 % (Bonferroni): a p-value is doubled, and the interval and the power
    belong to the same level, so an interval without 0 and a verdict are the same. Where no difference from the baseline
    is found, the row is equivalent to it if two one-sided tests at 0.025 each say so: if the interval of 95 % lies
    inside the margin.
    """
    column = board.spec.column_of(question)
    metric = metric_for(column.metric)
    duels = [_duel(board, question, other) for other in question.others]
    comparisons = 0
    if question.family is not None:  # p = 1 until `in_families` has counted the comparisons
        comparisons, p_value = board.adjusted.get(question, (0, 1.0))
        duels = [duel and replace(duel, p_value=None if duel.p_value is None else p_value) for duel in duels]
    number = board.estimate(question.subject, column)
    audited, audit = _audited(board, question.subject)
    return Answer(
        question=question,
        metric=metric,
        verdict=_verdict(metric, duels, question.margin),
        value=None if number is None else number.value,
        trainings=len(board.trainings(question.subject, column)),
        planned=board.planned(question.subject),
        samples=0 if number is None else number.n,
        data=next((cell[0].spec.data.name for cell in board.trainings(question.subject, column)), ""),
        against=duels[0],
        control=duels[1] if question.ablation is not None else None,
        audited=audited,
        audit=audit,
        idle=inactive(audit for audit in _audits(board, question.subject) if audit is not None),
        comparisons=comparisons,
    )


def _verdict(metric: Metric, duels: Sequence[Duel | None], margin: float | None) -> str:
    """Return the one verdict: it helps only if it beats all; `margin` is in the unit of the metric."""
    tested = [duel for duel in duels if duel is not None and duel.p_value is not None]
    against = duels[0]
    if against is None or against not in tested:
        return OPEN
    signs = [duel.sign(metric) for duel in tested]
    if signs[0] < 0:
        return HURTS
    if min(signs) < 0:
        return LESS
    if signs[0] == 0:
        return EQUIVALENT if margin is not None and against.within(margin / metric.unit.scale) else SAME
    if len(tested) < len(duels):
        return OPEN
    return HELPS if min(signs) > 0 else SAME


def _duel(board: "Board", question: "Question", other: str) -> Duel | None:
    title, comparisons, column = question.subject, len(question.others), board.spec.column_of(question)
    estimate, other_estimate = board.estimate(title, column), board.estimate(other, column)
    if estimate is None or other_estimate is None:
        return None
    trainings, planned = len(board.trainings(other, column)), board.planned(other)
    clean, other_clean = board.unattacked(title, column), board.unattacked(other, column)
    without_attack = None if clean is None or other_clean is None else clean.value - other_clean.value
    gap = estimate.value - other_estimate.value
    duel = Duel(other, other_estimate.value, trainings, planned, gap, unattacked=without_attack)
    comparison = board.comparison(title, other, column)
    if comparison is None:
        return duel
    low, high = comparison.interval(1 - ALPHA / comparisons)
    inner_low, inner_high = comparison.interval(1 - ALPHA)
    least = detectable(board, column, (title, other), ALPHA / comparisons)
    return replace(
        duel,
        difference=comparison.difference,
        low=low,
        high=high,
        p_value=min(1.0, comparisons * comparison.p_value),
        inner_low=inner_low,
        inner_high=inner_high,
        seeds=comparison.trainings,
        rows=comparison.recipes,
        least=None if least is None else least.difference,
    )


def _audits(board: "Board", title: str) -> list[Audit | None]:
    return board.audits(board.row(title))


def _audited(board: "Board", title: str) -> tuple[str, str]:
    """Say what the audits of a row found of masked gradients, in short and in a sentence."""
    of_trainings = _audits(board, title)
    audits = [audit for audit in of_trainings if audit is not None]
    flags = sorted({check.name for audit in audits for check in audit.flags})
    if flags:
        why = f"audits of {quoted(title)} raise flags ({', '.join(flags)}), so its gradients may hide something"
        return RAISED, why
    if not audits or None in of_trainings:
        why = f"{quoted(title)} was not audited throughout, so whether its gradients hide anything is not known"
        return UNKNOWN, why
    quick = "quick " if any(audit.plan.level == "quick" for audit in audits) else ""
    plans = sorted({(audit.plan.images, audit.plan.eps) for audit in audits})
    where = ", ".join(f"{images} images at {255 * eps:g}/255" for images, eps in plans)
    where += "; a quick audit makes no black-box attack" if quick else ""
    short = f"{NONE} at {' and '.join(f'{255 * eps:g}/255' for eps in sorted({eps for _, eps in plans}))}"
    return short, f"no {quick}audit of {quoted(title)} ({where}) raises a flag that its gradients hide anything"
