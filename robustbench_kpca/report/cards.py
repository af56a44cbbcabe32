"""An answer as a card: the question, one verdict, a plot of two differences on one axis, and small print."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from robustbench_kpca._core.errors import printable
from robustbench_kpca._core.web.document import Block, Card, Details, Figure, Link, Paragraph, Verdict
from robustbench_kpca._core.web.figures import INK, drawing, svg_of
from robustbench_kpca.metrics import Unit
from robustbench_kpca.report.answers import EQUIVALENT, HELPS, HURTS, LESS, OPEN, SAME, Answer, Duel
from robustbench_kpca.report.lead import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {
    HELPS: "supported",
    HURTS: "not-supported",
    LESS: "not-supported",
    EQUIVALENT: "equivalent",
    SAME: "not-testable",
    OPEN: "not-measured",
}
"""Verdict -> its colour."""
_COLOURS = {HELPS: "#1a7f37", HURTS: "#b42318", LESS: "#b42318", EQUIVALENT: INK, SAME: INK, OPEN: INK}
_TWO = (
    "It helps only if it beats baseline and control. The two intervals hold together with 95 % (each has 97.5 %), and "
    "p-values are doubled. "
)
_ONE = "It helps if it beats its baseline, the only comparison, whose interval has 95 %. "
_FAMILY = (
    "It helps if it beats its baseline. The p-value is adjusted by Holm for the {comparisons} comparisons of the "
    "family '{family}'; those that were not made count with p = 1. The interval is of 95 %, not adjusted. "
)
_HOW = (
    "Found reliably: with a probability of 80 %; a true difference within the grey band of the picture would not have "
    "been. Seeds are blocks: spread is what they leave, of all rows with these seeds, or of the two rows where theirs "
    "is larger."
)
_EQUIVALENT = (
    "Equivalent to the baseline: no difference from it is found, and the interval of 95 %, [{low}, {high}], lies "
    "within ± {margin:g} (dotted): two one-sided tests at 2.5 % each."
)


def card(answer: Answer, spoken: Mapping[str, str], folder: str = "", place: str = "") -> Card:
    """Return the card of an answer; on a page over several boards it is short, and names the board.

    Args:
        answer: of a board.
        spoken: names of rows as people say them.
        folder: the way to the page of the board from a page over several; "" on the page itself.
        place: which of the questions of its page it is, in words; "" where it is the only one.
    """
    blocks: list[Block] = [Paragraph(text) for text in (_idle(answer, spoken), _text(answer, spoken)) if text]
    if drawn := _drawn(answer, spoken):
        blocks.append(Figure(drawn))
    verdict = Verdict(answer.verdict_with_margin, KINDS[answer.verdict])
    if folder:
        where = Link(f"{answer.question.column} ({answer.data})", folder=folder)
        return Card((where, f": {_question(answer, spoken)}"), verdict, blocks)
    blocks.append(Paragraph(f"{place}{_small(answer)}", soft=True))
    blocks.append(Details("How this is decided", [Paragraph(_how(answer, spoken))]))
    return Card(_question(answer, spoken), verdict, blocks)


def numbered(answers: Sequence[Answer], spoken: Mapping[str, str]) -> list[Card]:
    """Return the cards of a page, each of which says how many questions the page asks, if there are several."""
    places = [f"Question {place} of {len(answers)}. " for place in range(1, len(answers) + 1)]
    return [
        card(answer, spoken, place=place * (len(answers) > 1)) for answer, place in zip(answers, places, strict=True)
    ]


def _how(answer: Answer, spoken: Mapping[str, str]) -> str:
    """Say how the verdict follows: the tests, the audits, and the rule."""
    tests = [
        f"Against {named(spoken, duel.other)}: p = {duel.p_value:.2g}, {duel.seeds} seeds, spread of {duel.rows} rows."
        for duel in (answer.against, answer.control)
        if duel is not None and duel.p_value is not None
    ]
    audit = f"{answer.audit[0].upper()}{answer.audit[1:]}."
    rule = _ONE if answer.question.ablation is None else _TWO
    if answer.question.family is not None:
        rule = _FAMILY.format(comparisons=answer.comparisons, family=answer.question.family)
    how = f"{rule}{_HOW}"
    return " ".join([*tests, audit, how, *_equivalence(answer)])


def _question(answer: Answer, spoken: Mapping[str, str]) -> str:
    return answer.question.asks or f"Does {named(spoken, answer.question.subject)} help?"


def _idle(answer: Answer, spoken: Mapping[str, str]) -> str:
    """Say first that the mechanism asked about is inactive, so that the rest is of something else; else nothing."""
    if not answer.idle:
        return ""
    subject, baseline = (named(spoken, title) for title in (answer.question.subject, answer.question.baseline))
    return f"In {subject} the {answer.idle}. So {subject} without its mechanism is compared with {baseline}."


def _text(answer: Answer, spoken: Mapping[str, str]) -> str:
    """Say both differences, and which would have been too small to see; at most forty words."""
    if answer.against is None:
        return f"{answer.question.subject} or {answer.question.baseline} has no number in {answer.question.column} yet."
    unit, against = answer.metric.unit, answer.against
    duels = [against] if answer.control is None else [against, answer.control]
    parts = [f"{_gap(answer, duel, unit)} against {named(spoken, duel.other)}{_clean(duel, unit)}" for duel in duels]
    text = f"{'; '.join(parts)}; in {answer.question.column}."
    if against.p_value is None:
        single = min(answer.trainings, against.trainings) < 2
        why = "One training has no spread" if single else "They share fewer than two seeds"
        return f"{text} {why}, so nothing is tested."
    if answer.verdict == EQUIVALENT:
        if end := _end_of_scale(answer):
            return f"{text} {'All three' if answer.control else 'Both'} are {end}, so there is little to compare."
        return f"{text} Larger differences than the margin are ruled out."
    if answer.verdict == SAME and against.least is not None:
        if answer.comparisons and (against.low or 0) * (against.high or 0) > 0:
            text += f" This is not clear among {answer.comparisons} comparisons: adjusted p = {against.p_value:.2g}."
        return f"{text} Only a difference above {unit.gap(against.least)} would have been found reliably."
    return text


def _end_of_scale(answer: Answer) -> str:
    """Say where all three rows lie, if they can hardly differ: an attack that breaks all, or none, tells nothing."""
    rows = (answer, answer.against, answer.control)
    shares = [row.value for row in rows if row is not None and row.value is not None]
    if not answer.metric.unit.points:
        return ""
    return "below 1 %" if max(shares) < 0.01 else "above 99 %" if min(shares) > 0.99 else ""


def _equivalence(answer: Answer) -> list[str]:
    """Say when subject and baseline are equivalent, where the question has a margin and their difference was tested."""
    unit, duel = answer.metric.unit, answer.against
    if answer.question.margin is None or duel is None or duel.inner_low is None or duel.inner_high is None:
        return []
    low, high = unit.change(duel.inner_low), unit.change(duel.inner_high)
    return [_EQUIVALENT.format(low=low, high=high, margin=answer.question.margin)]


def _gap(answer: Answer, duel: Duel, unit: Unit) -> str:
    """Write a difference with its interval: that of the numbers in the table, unless it is of other seeds."""
    points = " points" if unit.points else ""
    value, other = 0.0 if answer.value is None else answer.value, duel.value
    of_table = math.isclose(value - other, duel.difference, abs_tol=1e-9)
    difference = unit.difference(value, other) if of_table else unit.change(duel.difference)
    if duel.low is None or duel.high is None:
        return f"{difference}{points}"
    return f"{difference} [{unit.change(duel.low)}, {unit.change(duel.high)}]{points}"


def _clean(duel: Duel, unit: Unit) -> str:
    """Say the difference without the attack, which an attack leaves in place."""
    return "" if duel.unattacked is None else f" ({unit.change(duel.unattacked)} without the attack)"


def _small(answer: Answer) -> str:
    """Say where the numbers are from."""
    part = f"{answer.trainings} of {answer.planned}" if answer.trainings < answer.planned else str(answer.trainings)
    many = "s" if answer.planned > 1 else ""
    of = f" of {answer.data}" if answer.data else ""
    return f"{answer.question.column}; {answer.samples:,} samples{of}; {part} training{many}; {answer.audited}."


def _drawn(answer: Answer, spoken: Mapping[str, str]) -> str:
    """Draw both differences."""
    duels = {"baseline": answer.against, "control": answer.control}
    rows = [
        (f"{named(spoken, duel.other)} ({role})", duel, answer.verdict)
        for role, duel in duels.items()
        if duel is not None
    ]
    better = "left" if answer.metric.lower_is_better else "right"
    return forest(rows, answer.metric.unit, better=better, margin=answer.question.margin)


def forest(
    rows: Sequence[tuple[str, Duel, str]],
    unit: Unit,
    *,
    better: str = "right",
    title: str = "differences",
    margin: float | None = None,
    width: float = 3.8,
) -> str:
    """Draw differences with their intervals, the first on top, and a band for what could not be found reliably.

    A label stands above its line, so the drawing is as narrow as a phone; the axis is at the top.

    Args:
        rows: label, difference and verdict, which gives the colour; those that were not tested are left out.
        better: the side of the better.
        title: for readers who do not see it.
        margin: within which rows are equivalent, in the unit; None: none is drawn.
        width: in inches.

    Returns:
        The text of an SVG; empty where nothing was tested.
    """
    tested = [(label, duel, verdict) for label, duel, verdict in rows if duel.low is not None]
    if not tested:
        return ""
    with drawing((width, 0.55 + 0.42 * len(tested))) as (figure, buffer):
        axis = figure.subplots()
        for place, (label, duel, verdict) in enumerate(tested):
            axis.text(0, place - 0.02, printable(label), va="bottom", transform=axis.get_yaxis_transform())
            _draw(axis, place, duel, unit, _COLOURS[verdict])
            axis.plot([0, 0], [place, place + _BAND], color=INK, linewidth=0.8)
            for end in () if margin is None else (-margin, margin):
                axis.plot([end, end], [place, place + _BAND], color=INK, linewidth=0.8, linestyle=":")
        what = "points" if unit.points else "difference"
        axis.set(ylim=(len(tested) - 1 + _BAND, _BAND - 1), yticks=[], xlabel=f"{what}; better is {better}")
        axis.xaxis.tick_top()
        axis.xaxis.set_label_position("top")
        axis.spines[["left", "bottom"]].set_visible(False)
        axis.spines["top"].set_visible(True)
    return svg_of(buffer, f"{title}, with intervals")


_BAND = 0.45
"""Height of what is drawn of a difference; the rest, up to 1, is its label."""


def _draw(axis: "Axes", place: int, duel: Duel, unit: Unit, colour: str) -> None:
    assert duel.low is not None
    assert duel.high is not None
    middle = place + _BAND / 2
    if duel.least is not None:
        edge = unit.scale * duel.least
        axis.fill_betweenx([place, place + _BAND], -edge, edge, color="#8884", linewidth=0)
    axis.plot([unit.scale * duel.low, unit.scale * duel.high], [middle, middle], color=colour, linewidth=2)
    axis.plot([unit.scale * duel.difference], [middle], marker="o", markersize=5, color=colour)
