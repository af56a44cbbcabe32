"""Figures of attacks: accuracy against the budget, and clean against robust accuracy with the Pareto front."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from robustbench_kpca._core.web.figures import INK, drawing, svg_of
from robustbench_kpca.metrics import Metric, Unit, metric_for
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.lines import COLOURS, Axis, label_ends, lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 30
"""Points that are named; of more, those of the front and the first of the ranks."""


@dataclass(frozen=True)
class Panel:
    """Columns of the same samples that differ in eps alone, and the metric that they show."""

    metric: Metric
    columns: list[tuple[float, Column]]


def against_eps(board: Board) -> dict[str, str]:
    """Draw metrics of attacks against eps with 95 % bands; return title -> SVG, one per attack, norm and metric.

    Budgets under which no row was measured are left out. At eps = 0 are the same samples without attack: a column of
    the board, or what the records of the attack hold of them.
    """
    figures = {}
    for title, panel in eps_panels(board).items():
        measured = [
            (eps, column) for eps, column in panel.columns if any(board.estimate(row, column) for row in board.ranked())
        ]
        curves = {row: {255 * eps: board.estimate(row, column) for eps, column in measured} for row in board.ranked()}
        if measured and measured[0][0] > 0:
            starts = {row: board.unattacked(row, measured[0][1]) for row in curves}
            if any(starts.values()):
                curves = {row: {0.0: starts[row], **curve} for row, curve in curves.items()}
        places = {eps: f"{eps:.3g}" for eps in dict.fromkeys(eps for curve in curves.values() for eps in curve)}
        axis = Axis("eps x 255", panel.metric.title, panel.metric.unit, places)
        if svg := lines(curves, axis, f"{panel.metric.title} against eps: {title}"):
            figures[title] = svg
    return figures


def clean_columns(board: Board) -> tuple[Column, Column] | None:
    """Return the column of an attack that ranks, or the first one, and that of the same metric without attack.

    The latter is of the same samples where there is such a column.
    """
    for column in sorted(board.columns, key=lambda column: column.title != board.spec.rank_by):
        wanted = metric_for(column.metric).unattacked
        clean = [other for other in board.spec.column if wanted and other.metric == wanted]
        if clean:
            return max(clean, key=lambda other: _same_samples(board, other, column)), column
    return None


def _same_samples(board: Board, *columns: Column) -> bool:
    return len({board.spec.needed(column)[0].samples for column in columns}) == 1


def clean_and_robust(board: Board) -> str:
    """Draw every row's number under attack against that without, with 95 % intervals and the Pareto front."""
    columns = clean_columns(board)
    if columns is None:
        return ""
    clean, robust = columns
    same = _same_samples(board, clean, robust)
    estimates = {
        row: (board.estimate(row, clean) if same else board.unattacked(row, robust), board.estimate(row, robust))
        for row in board.ranked()
    }
    points = {row: (x, y) for row, (x, y) in estimates.items() if x is not None and y is not None}
    if len(points) < 2:
        return ""
    signs = [-1 if metric_for(column.metric).lower_is_better else 1 for column in columns]
    front = pareto({row: (signs[0] * x.value, signs[1] * y.value) for row, (x, y) in points.items()})
    return _scatter(points, front, clean, robust)


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the points that no other exceeds in one value without being below in the other, by the first value."""
    front = [
        name
        for name, (x, y) in points.items()
        if not any(a >= x and b >= y and (a > x or b > y) for a, b in points.values())
    ]
    return sorted(front, key=lambda name: points[name])


Pair = tuple[Estimate, Estimate]
"""A row's number without attack and under it."""


def _scatter(points: Mapping[str, Pair], front: list[str], clean: Column, robust: Column) -> str:
    units = metric_for(clean.metric).unit, metric_for(robust.metric).unit
    rest = [name for name in points if name not in front]
    named = list(points) if len(points) <= NAMED else [*front, *rest][:NAMED]
    width = 5.2 + 0.075 * max(len(name) for name in named)
    with drawing((width, max(3.6, 0.19 * len(named) + 1))) as (figure, buffer):
        axis = figure.subplots()
        _points(axis, [points[name] for name in rest], units, fmt="s", markersize=3.5, color=COLOURS[0])
        _points(axis, [points[name] for name in front], units, fmt="o", markersize=5, color=COLOURS[1])
        places = {name: (units[0].scale * x.value, units[1].scale * y.value) for name, (x, y) in points.items()}
        steps = [places[name] for name in front]
        axis.plot([x for x, _ in steps], [y for _, y in steps], color=COLOURS[1], linewidth=1, linestyle="--")
        top = units[1].ends[1]
        if top is not None:
            axis.set_ylim(-0.02 * top, 1.02 * top)
        axis.set(xlabel=units[0].label(clean.title), ylabel=units[1].label(robust.title))
        axis.grid(color=INK, alpha=0.12)
        left, right = axis.get_xlim()
        axis.set_xlim(left, right)
        ends = [(*places[name], name, COLOURS[1] if name in front else "#888888") for name in named]
        label_ends(axis, ends, right + 0.04 * (right - left))
    return svg_of(buffer, f"{robust.title} against {clean.title}; on the Pareto front: {', '.join(front)}")


def _points(axis: "Axes", pairs: Sequence[Pair], units: tuple[Unit, Unit], **style: Any) -> None:
    """Draw points with their intervals."""
    if not pairs:
        return
    x, y = ([unit.scale * pair[place].value for pair in pairs] for place, unit in enumerate(units))
    reach = [
        [
            [unit.scale * max(0.0, pair[place].value - pair[place].low) for pair in pairs],
            [unit.scale * max(0.0, pair[place].high - pair[place].value) for pair in pairs],
        ]
        for place, unit in enumerate(units)
    ]
    axis.errorbar(x, y, xerr=reach[0], yerr=reach[1], elinewidth=0.7, alpha=0.9, **style)


def eps_panels(board: Board) -> dict[str, Panel]:
    """Group the attack columns of the same samples that differ in eps alone; a panel needs at least two.

    Where the board has a column of the same metric and samples without attack, the panel shows it at eps = 0. Titles
    name the metric where panels show different ones; panels of the same title are numbered.
    """
    curves = []
    for column in board.spec.column:
        scenario = board.spec.needed(column)[0].resolve()[1]
        if isinstance(scenario, Attack) and len(column.protocols) == 1:
            names = " + ".join(stage.attack for stage in scenario.stage)
            otherwise = scenario.model_copy(update={"eps": 1.0, "below": ()}).digest()
            title = f"{names}, {scenario.norm}, {scenario.space} space"
            samples = repr(board.spec.needed(column)[0].samples)
            curves.append(((title, column.metric, otherwise, samples), scenario.eps, column))
    panels = []
    for (title, name, *_), group in groupby(sorted(curves, key=lambda item: item[:2]), key=lambda item: item[0]):
        metric, columns = metric_for(name), [(eps, column) for _, eps, column in group]
        first = columns[0][1]
        references = (other for other in board.spec.column if other.metric == metric.unattacked)
        clean = next((other for other in references if _same_samples(board, other, first)), None)
        if len(columns) > 1:
            panels.append((title, Panel(metric, ([(0.0, clean)] if clean else []) + columns)))
    if len({panel.metric.name for _, panel in panels}) > 1:
        panels = [(f"{title}: {panel.metric.title}", panel) for title, panel in panels]
    titles, numbers = Counter(title for title, _ in panels), Counter[str]()
    named = {}
    for title, panel in panels:
        numbers[title] += 1
        named[f"{title} ({numbers[title]})" if titles[title] > 1 else title] = panel
    return named
