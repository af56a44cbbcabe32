"""Curves over the budget of attacks, as SVG text that needs no file beside it."""

import io
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from robustbench_kpca.metrics import Metric, common_unit, metric_for
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "rbk"}


@dataclass(frozen=True)
class Panel:
    """Columns that differ in eps alone, and the metric that they show."""

    metric: Metric
    columns: list[tuple[float, Column]]


def against_eps(board: Board) -> str:
    """Draw metrics of attacks against eps, one panel per attack and norm, one line with its 95 % band per model."""
    panels = eps_panels(board)
    if not panels:
        return ""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(panels) + 2.2, 3.4), layout="constrained")
        FigureCanvasSVG(figure)
        one_scale = common_unit(panel.metric.unit for panel in panels.values()) is not None
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=one_scale)[0]
        shown = ""
        for axis, (title, panel) in zip(axes, panels.items(), strict=True):
            _draw(axis, board, panel)
            axis.set_title(title)
            label = panel.metric.unit.label(panel.metric.title)
            if label != shown:
                axis.set_ylabel(label)
            shown = label
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _draw(axis: "Axes", board: Board, panel: Panel) -> None:
    scale = panel.metric.unit.scale
    for number, title in enumerate(board.ranked()):
        points = [(eps, board.estimate(title, column)) for eps, column in panel.columns]
        drawn = [(eps, estimate) for eps, estimate in points if estimate is not None]
        if drawn:
            x = [eps * 255 for eps, _ in drawn]
            style = line_style(number)
            axis.plot(x, [scale * e.value for _, e in drawn], marker="o", markersize=3, label=title, **style)  # type: ignore[arg-type]
            axis.fill_between(
                x, [scale * e.low for _, e in drawn], [scale * e.high for _, e in drawn],
                color=style["color"], alpha=0.12, linewidth=0,
            )  # fmt: skip
    axis.set(xlabel="eps x 255", ylim=panel.metric.unit.ends)
    axis.grid(alpha=0.25)


def line_style(number: int) -> dict[str, str]:
    """Give the curves colours first, then dashes: the first 40 differ."""
    return {"color": f"C{number % 10}", "linestyle": ("-", "--", ":", "-.")[number // 10 % 4]}


def eps_panels(board: Board) -> dict[str, Panel]:
    """Group the attack columns that differ in eps alone; a panel needs at least two.

    Where the board has a column of the same metric without attack, the panel shows it at eps = 0. Titles name the
    metric where panels show different ones; panels of the same title are numbered.
    """
    found = []
    for column in board.spec.column:
        scenario = board.spec.needed(column)[0].resolve()[1]
        if isinstance(scenario, Attack) and len(column.protocols) == 1:
            names = " + ".join(stage.attack for stage in scenario.stage)
            otherwise = scenario.model_copy(update={"eps": 1.0, "below": ()}).digest()
            title = f"{names}, {scenario.norm}, {scenario.space} space"
            found.append(((title, column.metric, otherwise), scenario.eps, column))
    panels = []
    for (title, name, _), group in groupby(sorted(found, key=lambda item: item[:2]), key=lambda item: item[0]):
        metric, columns = metric_for(name), [(eps, column) for _, eps, column in group]
        clean = next((column for column in board.spec.column if column.metric == metric.unattacked), None)
        if len(columns) > 1:
            panels.append((title, Panel(metric, ([(0.0, clean)] if clean else []) + columns)))
    if len({panel.metric.name for _, panel in panels}) > 1:
        panels = [(f"{title}: {panel.metric.title}", panel) for title, panel in panels]
    titles, seen = Counter(title for title, _ in panels), Counter[str]()
    named = {}
    for title, panel in panels:
        seen[title] += 1
        named[f"{title} ({seen[title]})" if titles[title] > 1 else title] = panel
    return named
