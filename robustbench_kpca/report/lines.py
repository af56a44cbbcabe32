"""Curves with their intervals: named at their ends where they are few, else one small panel a curve."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import printable
from robustbench_kpca._core.web.figures import INK, drawing, svg_of
from robustbench_kpca.metrics import PERCENT, Unit
from robustbench_kpca.records.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8c6d31", "#7f7f7f")
"""Told apart also by readers who are colour-blind (after Okabe & Ito 2008)."""
FEW, PANELS = len(COLOURS), 24
"""Curves that share a panel; curves that get a panel of their own."""


@dataclass(frozen=True)
class Axis:
    """The axes of a figure of curves.

    Attributes:
        x: label of the horizontal axis; y: of the vertical one.
        ticks: place -> text, on the horizontal axis; empty: as they fall.
    """

    x: str
    y: str
    unit: Unit = PERCENT
    ticks: Mapping[float, str] = field(default_factory=dict)


Curve = Mapping[float, Estimate | None]
"""Values by place on the horizontal axis; None where not measured: there the line is broken."""


def lines(curves: Mapping[str, Curve], axis: Axis, title: str) -> str:
    """Draw curves with their 95 % bands; return the text of an SVG, empty where nothing was measured.

    Up to eight share a panel, with their names at their ends. More get a small panel each, before the others in grey;
    the first 24 are shown.
    """
    drawn = {name: curve for name, curve in curves.items() if any(curve.values())}
    if not drawn:
        return ""
    return _together(drawn, axis, title) if len(drawn) <= FEW else _in_panels(drawn, axis, title)


def dodged(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move values apart until neighbours are `gap` apart, as little as needed and inside [low, high] if they fit."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    blocks: list[tuple[float, list[int]]] = []  # middle and members of labels that touch
    for place in order:
        blocks.append((values[place], [place]))
        while len(blocks) > 1:
            (first, names), (second, more) = blocks[-2:]
            if second - first >= gap * (len(names) + len(more)) / 2:
                break
            both = names + more
            blocks[-2:] = [(sum(values[place] for place in both) / len(both), both)]
    heights = [0.0] * len(values)
    for middle, members in blocks:
        for number, place in enumerate(members):
            heights[place] = middle + gap * (number - (len(members) - 1) / 2)
    room = high - low - gap * (len(values) - 1)
    if room >= 0:
        for rank, place in enumerate(order):  # move them back inside, from below and then from above
            heights[place] = max(heights[place], low + rank * gap)
        for rank, place in enumerate(reversed(order)):
            heights[place] = min(heights[place], high - rank * gap)
    return heights


def label_ends(axis: "Axes", points: Sequence[tuple[float, float, str, str]], x: float) -> None:
    """Write names at `x`, in data coordinates, beside points (x, y, name, colour), with a thin line to each point."""
    low, high = axis.get_ylim()
    height = axis.figure.bbox.height / axis.figure.dpi * 0.8
    gap = (high - low) / height * 0.155
    places = dodged([point[1] for point in points], gap, low, high)
    for (px, py, name, colour), y in zip(points, places, strict=True):
        axis.plot([px, x], [py, y], color=colour, linewidth=0.5, alpha=0.7, clip_on=False, zorder=1)
        axis.annotate(
            printable(name),
            (x, y),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            annotation_clip=False,
        )


def _together(curves: Mapping[str, Curve], axis: Axis, title: str) -> str:
    names = max(len(name) for name in curves)
    with drawing((4.6 + 0.075 * names, max(3.2, 0.19 * len(curves) + 1))) as (figure, buffer):
        panel = figure.subplots()
        for colour, curve in zip(COLOURS, curves.values(), strict=False):
            _draw(panel, curve, axis.unit, colour)
        _dress(panel, axis, curves)
        panel.set(xlabel=axis.x, ylabel=axis.unit.label(axis.y))
        ends = []
        for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
            x, estimate = [(x, number) for x, number in curve.items() if number is not None][-1]
            ends.append((x, axis.unit.scale * estimate.value, name, colour))
        left, right = panel.get_xlim()
        label_ends(panel, ends, right + 0.03 * (right - left))
    return svg_of(buffer, title)


def _in_panels(curves: Mapping[str, Curve], axis: Axis, title: str) -> str:
    first_names = list(curves)[:PANELS]
    columns = min(5, len(first_names))
    rows = -(-len(first_names) // columns)
    points = [(x, estimate) for name in first_names for x, estimate in [*curves[name].items(), (math.nan, None)]]
    grey = [x for x, _ in points], _numbers((estimate for _, estimate in points), "value", axis.unit)
    width, height = 1.75 * columns + 0.8, 1.3 * rows + 0.5
    with drawing((width, height), **{"axes.titlesize": 7.5}) as (figure, buffer):
        figure.set_layout_engine(None)
        figure.subplots_adjust(0.7 / width, 0.4 / height, 1 - 0.1 / width, 1 - 0.2 / height, wspace=0.12, hspace=0.3)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
        for panel, name in zip(panels, first_names, strict=False):
            panel.plot(*grey, color="#8886", linewidth=0.5)
            _draw(panel, curves[name], axis.unit, COLOURS[0])
            _dress(panel, axis, curves)
            panel.set_title(printable(name), loc="left")
        for panel in panels[len(first_names) :]:
            panel.set_axis_off()
        figure.supxlabel(axis.x, fontsize=9)
        figure.supylabel(axis.unit.label(axis.y), fontsize=9, x=0.16 / width)
    return svg_of(buffer, title)


def _draw(panel: "Axes", curve: Curve, unit: Unit, colour: str) -> None:
    """Draw a curve and its band, broken where a value is missing."""
    x = list(curve)
    value, low, high = (_numbers(curve.values(), name, unit) for name in ("value", "low", "high"))
    panel.plot(x, value, marker="o", markersize=3, color=colour, linewidth=1.4)
    panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _numbers(curve: Iterable[Estimate | None], name: str, unit: Unit) -> NDArray[np.float64]:
    return np.array([math.nan if number is None else unit.scale * float(getattr(number, name)) for number in curve])


def _dress(panel: "Axes", axis: Axis, curves: Mapping[str, Curve]) -> None:
    if axis.ticks:
        panel.set_xticks(list(axis.ticks), list(axis.ticks.values()))
    places = [x for curve in curves.values() for x in curve]
    spare = 0.03 * (max(places) - min(places) or 1)
    panel.set(xlim=(min(places) - spare, max(places) + spare))
    panel.set(ylim=axis.unit.ends)
    panel.grid(color=INK, alpha=0.12)
