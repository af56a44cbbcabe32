"""An answer as a card: the question, one verdict, a plot of two differences on one axis, and small print."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from robustbench_kpca._core.errors import printable_lines
from robustbench_kpca._core.web.document import Block, Card, Details, Figure, Paragraph, Verdict, Word
from robustbench_kpca._core.web.figures import INK, drawing, svg_of
from robustbench_kpca.metrics import Metric, Unit
from robustbench_kpca.report.answers import HELPS, HURTS, OPEN, SAME, Answer, Duel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {HELPS: "supported", HURTS: "not-supported", SAME: "not-testable", OPEN: "not-measured"}
"""Verdict -> its colour."""
COLOURS = {HELPS: "#1a7f37", HURTS: "#b42318", SAME: INK, OPEN: INK}
_HOW = (
    "It helps only if it beats baseline and control. The two intervals hold together with 95 % (each has 97.5 %), and "
    "p-values are doubled. The grey band is what these trainings could not find reliably: a true difference at its "
    "edge would have been found with a probability of 80 %. It takes the spread between trainings of all rows, the "
    "interval that of the two rows alone; so the band can be the wider one."
)


def card(answer: Answer, spoken: Mapping[str, str]) -> Card:
    """Return the card of an answer; `spoken`: the names of rows as people say them."""
    name = spoken.get(answer.question.subject, answer.question.subject)
    duels = [duel for duel in (answer.against, answer.control) if duel is not None]
    blocks: list[Block] = [Paragraph(_text(answer, spoken))]
    if drawn := forest({_label(answer, duel, spoken): duel for duel in duels}, answer.metric, answer.verdict):
        blocks.append(Figure(drawn))
    blocks.append(Paragraph(_small(answer), soft=True))
    tests = [
        f"Against {spoken.get(duel.other, duel.other)}: p = {duel.p_value:.2g}."
        for duel in duels
        if duel.p_value is not None
    ]
    audit = f"{answer.audit[0].upper()}{answer.audit[1:]}."
    blocks.append(Details("How this is decided", [Paragraph(" ".join([*tests, audit, _HOW]))]))
    asked = answer.question.asks or f"Does {name} help?"
    return Card(asked, Verdict(answer.verdict, KINDS[answer.verdict]), blocks)


def in_a_line(answer: Answer, spoken: Mapping[str, str]) -> list[Word]:
    """Return an answer in one line, for pages that list several."""
    asked = answer.question.asks or f"Does {spoken.get(answer.question.subject, answer.question.subject)} help?"
    part = f" ({answer.trainings} of {answer.planned} trainings)" if answer.trainings < answer.planned else ""
    return [f"{asked} ", Verdict(answer.verdict, KINDS[answer.verdict]), f"{part}. {_text(answer, spoken)}"]


def _text(answer: Answer, spoken: Mapping[str, str]) -> str:
    """Say both differences, and which would have been too small to see; at most forty words."""
    if answer.against is None:
        return f"{answer.question.subject} or {answer.question.baseline} has no number in {answer.question.column} yet."
    unit, against = answer.metric.unit, answer.against
    parts = [f"{_gap(against, unit)} against {spoken.get(against.other, against.other)}"]
    if answer.control is not None:
        parts.append(f"{_gap(answer.control, unit)} against {spoken.get(answer.control.other, answer.control.other)}")
    text = f"{', '.join(parts)} in {answer.question.column}."
    if against.p_value is None:
        return f"{text} One training has no spread, so nothing is tested."
    if answer.verdict == SAME and against.least is not None:
        return f"{text} Only a difference above {unit.gap(against.least)} would have been found reliably."
    return text


def _gap(duel: Duel, unit: Unit) -> str:
    """Write a difference with its interval."""
    points = " points" if unit.points else ""
    if duel.low is None or duel.high is None:
        return f"{unit.change(duel.difference)}{points}"
    return f"{unit.change(duel.difference)} [{unit.change(duel.low)}, {unit.change(duel.high)}]{points}"


def _small(answer: Answer) -> str:
    """Say where the numbers are from."""
    part = f"{answer.trainings} of {answer.planned}" if answer.trainings < answer.planned else str(answer.trainings)
    many = "s" if answer.planned > 1 else ""
    known = {"raise flags": "audit flags raised", "not audited": "not audited throughout"}
    flags = next((said for words, said in known.items() if words in answer.audit), "no audit flag")
    of = f" of {answer.data}" if answer.data else ""
    return f"{answer.question.column}; {answer.samples:,} samples{of}; {part} training{many}; {flags}."


def _label(answer: Answer, duel: Duel, spoken: Mapping[str, str]) -> str:
    role = "baseline" if duel is answer.against else "control"
    return f"{spoken.get(duel.other, duel.other)} ({role})"


def forest(duels: Mapping[str, Duel], metric: Metric, verdict: str = SAME) -> str:
    """Draw differences with their intervals, one below the other, and a band for what is too small to see.

    Return the text of an SVG; empty where nothing was tested.
    """
    rows = [(label, duel) for label, duel in duels.items() if duel.low is not None]
    if not rows:
        return ""
    width = 3.6 + 0.068 * max(len(label) for label, _ in rows)
    with drawing((width, 0.55 + 0.3 * len(rows))) as (figure, buffer):
        axis = figure.subplots()
        draw_forest(axis, rows, metric, [COLOURS[verdict]] * len(rows))
    return svg_of(buffer, "differences with intervals")


def draw_forest(axis: "Axes", rows: Sequence[tuple[str, Duel]], metric: Metric, colours: Sequence[str]) -> None:
    """Draw rows of differences, the first on top."""
    unit, side = metric.unit, "left" if metric.lower_is_better else "right"
    for place, ((_, duel), colour) in enumerate(zip(rows, colours, strict=True)):
        assert duel.low is not None
        assert duel.high is not None
        if duel.least is not None:
            edge = unit.scale * duel.least
            axis.fill_betweenx([place - 0.4, place + 0.4], -edge, edge, color="#8884", linewidth=0)
        axis.plot([unit.scale * duel.low, unit.scale * duel.high], [place, place], color=colour, linewidth=2)
        axis.plot([unit.scale * duel.difference], [place], marker="o", markersize=5, color=colour)
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set_yticks(range(len(rows)), [printable_lines(label) for label, _ in rows])
    axis.set(ylim=(len(rows) - 0.5, -0.5), xlabel=f"{'points' if unit.points else 'difference'}; better is {side}")
    axis.tick_params(left=False)
    axis.spines["left"].set_visible(False)
