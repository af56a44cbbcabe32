"""The figures of a board's corruption protocols: curves over severity, and heat maps aligned across models."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from robustbench_kpca.protocols.scenario import Corruption
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.heatmap import HeatMap, heatmap
from robustbench_kpca.report.lines import PANELS, Axis, lines
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.pages import Pages

DETAILED = 60
"""Models whose errors are shown at each severity, too: the first of the ranks."""
MOST = 200
"""Models with errors by corruption."""


@dataclass(frozen=True)
class CorruptionFigures:
    """The figures of one corruption protocol.

    Attributes:
        curves: SVG of the quantity against severity.
        quantity: what the curves show.
        error: what the maps show; labelled: the same with its unit.
        maps: errors averaged over severities, then at each severity.
        left_out: number of models that the first map does not show.
    """

    title: str
    curves: str
    quantity: str
    error: str
    labelled: str
    maps: list[HeatMap]
    left_out: int


def corruption_figures(board: Board) -> list[CorruptionFigures]:
    """Draw every corruption protocol of a board."""
    drawn = []
    models = [model for row in board.ranked_rows() for model in row.models]
    for evaluation in board.spec.evaluations:
        scenario = evaluation.resolve()[1]
        records = {model: record for model in models if (record := board.record(model, evaluation))}
        if not isinstance(scenario, Corruption) or not records:
            continue
        pages = task_named(next(iter(records.values())).spec.data.task).pages
        shown = dict(list(records.items())[:PANELS])
        maps = _maps({model: pages.by_corruption(record) for model, record in shown.items()}, scenario, pages)
        title, out = f"{scenario.title} ({scenario.made})", len(records) - len(shown)
        labelled = pages.unit.label(pages.error)
        curves = _curves(shown, scenario, pages, title)
        drawn.append(
            CorruptionFigures(title, curves, pages.quantity, pages.error, labelled=labelled, maps=maps, left_out=out)
        )
    return drawn


def _curves(records: Mapping[str, Record], scenario: Corruption, pages: Pages, title: str) -> str:
    values = {model: pages.along_severity(record) for model, record in list(records.items())[:PANELS]}
    severities = range(max(scenario.levels) + 1)
    curves = {model: {float(level): value.get(level) for level in severities} for model, value in values.items()}
    ticks = {float(level): str(level) if level else "clean" for level in severities}
    return lines(curves, Axis("severity", pages.quantity, pages.unit, ticks), f"{pages.quantity} by severity: {title}")


def _maps(tables: Mapping[str, pd.DataFrame], scenario: Corruption, pages: Pages) -> list[HeatMap]:
    levels = [str(level) for level in scenario.levels]
    means = {model: _column(table[levels].mean(axis=1), pages) for model, table in tables.items()}
    maps = [heatmap(means, "mean over severities", pages.unit)]
    first = dict(list(tables.items())[:DETAILED])
    for level in levels if len(levels) > 1 else []:
        errors = {model: _column(table[level], pages) for model, table in first.items()}
        maps.append(heatmap(errors, f"severity {level}", pages.unit))
    return maps


def _column(values: "pd.Series[float]", pages: Pages) -> dict[str, float]:
    return {str(name): float(value) / pages.unit.scale for name, value in values.items()}
