"""Figures of a board, as SVG text that needs no file beside it."""

import io
from collections import Counter
from itertools import groupby
from typing import Any

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.protocols.scenario import Attack, load_scenario
from robustbench_kpca.report.board import Board, Column

CLEAN = {
    "robust_accuracy": "clean_accuracy",
    "robust_pixel_accuracy": "pixel_accuracy",
    "robust_mean_accuracy": "mean_accuracy",
    "robust_miou": "miou",
}
"""What each metric of an attack is without one."""
STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "rbk"}


def accuracy_against_eps(board: Board) -> str:
    """Draw robust accuracy against eps, one panel per attack and norm, one line with its 95 % band per model."""
    panels = _panels(board)
    if not panels:
        return ""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(panels) + 2.2, 3.4), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axis, (title, columns) in zip(axes, panels.items(), strict=True):
            for number, model in enumerate(board.ranked()):
                points = [(eps, board.estimate(model, column)) for eps, column in columns]
                drawn = [(eps, estimate) for eps, estimate in points if estimate is not None]
                if drawn:
                    x = [eps * 255 for eps, _ in drawn]
                    style = line_style(number)
                    axis.plot(x, [100 * e.value for _, e in drawn], marker="o", markersize=3, label=model, **style)
                    axis.fill_between(
                        x, [100 * e.low for _, e in drawn], [100 * e.high for _, e in drawn],
                        color=style["color"], alpha=0.12, linewidth=0,
                    )  # fmt: skip
            axis.set(title=title, xlabel="eps x 255", ylim=(0, 100))
            axis.grid(alpha=0.25)
        axes[0].set_ylabel("accuracy (%)")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def line_style(number: int) -> dict[str, str]:
    """Give the curves colours first, then dashes: the first 40 differ."""
    return {"color": f"C{number % 10}", "linestyle": ("-", "--", ":", "-.")[number // 10 % 4]}


def _panels(board: Board) -> dict[str, list[tuple[float, Column]]]:
    """Group the attack columns that differ in eps alone; a panel needs at least two, and gets its clean column at 0.

    Panels of one title, which differ in something else, are numbered.
    """
    found = []
    for column in board.spec.column:
        scenario = load_scenario(column.protocols[0])[1]
        if isinstance(scenario, Attack) and len(column.protocols) == 1:
            names = " + ".join(stage.attack for stage in scenario.stage)
            otherwise = scenario.model_copy(update={"eps": 1.0, "below": ()}).digest()
            what = "" if column.metric == "robust_accuracy" else f": {metric_for(column.metric).title}"
            title = f"{names}, {scenario.norm}, {scenario.space} space{what}"
            found.append(((title, column.metric, otherwise), scenario.eps, column))
    panels = []
    for (title, metric, _), group in groupby(sorted(found, key=lambda item: item[:2]), key=lambda item: item[0]):
        columns = [(eps, column) for _, eps, column in group]
        clean = next((column for column in board.spec.column if column.metric == CLEAN.get(metric)), None)
        if len(columns) > 1:
            panels.append((title, ([(0.0, clean)] if clean else []) + columns))
    titles, seen = Counter(title for title, _ in panels), Counter[str]()
    named = {}
    for title, columns in panels:
        seen[title] += 1
        named[f"{title} ({seen[title]})" if titles[title] > 1 else title] = columns
    return named
