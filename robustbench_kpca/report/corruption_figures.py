"""The figures of a board's corruption protocols: curves over severity, and heat maps aligned across models.

The colour scale of heat maps is fixed: a colour means the same error on every page. Where a unit has no largest value,
as perplexity, it ends at the largest value of the map. Maps are tables: small, read aloud, copied and printed.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import pandas as pd

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Unit
from robustbench_kpca.protocols.corruption_names import canonical, group_of
from robustbench_kpca.protocols.scenario import Corruption
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.lines import PANELS, Axis, lines
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.pages import Pages
from robustbench_kpca.tasks.titles import title_of

COLOURS = "magma_r"
"""A small error is light and a large one dark, also in print and for readers who are colour-blind."""
STEPS = 25
"""Colours between an error of 0 and the largest."""
MARKED = 5
"""Steps of the colour scale between two labels of the legend."""


@dataclass(frozen=True)
class HeatMap:
    """A table of errors: rows are models, columns corruptions by group.

    Attributes:
        title: what the errors are of.
        groups: group of corruptions -> number of its columns.
        rows: by model, one (text, step of the colour scale) per column; the step is None where not measured.
        legend: (step of the colour scale, the value that it stands for), from 0 to the largest value.
    """

    title: str
    groups: list[tuple[str, int]]
    columns: list[str]
    rows: list[tuple[str, list[tuple[str, int | None]]]]
    legend: list[tuple[int, str]]


def heatmap(errors: Mapping[str, Mapping[str, float]], title: str = "", unit: Unit = PERCENT) -> HeatMap:
    """Arrange the errors of models under corruptions.

    Args:
        errors: by model, by corruption, from 0 to the largest value of the unit; NaN or absent where not measured.

    Raises:
        BadInputError: an error below 0 or above the largest value.
    """
    values = [value for row in errors.values() for value in row.values()]
    most = max((value for value in values if math.isfinite(value)), default=1.0) if unit.full is None else unit.full
    outside = [f"{value:g}" for value in values if not math.isnan(value) and not 0 <= value <= most]
    if outside:
        raise BadInputError(f"errors {', '.join(outside[:5])}", expected=f"numbers between 0 and {most:g}")
    names = canonical(dict.fromkeys(name for row in errors.values() for name in row))
    groups = [(group, len(list(members))) for group, members in groupby(names, key=group_of)]
    rows = [(model, [_cell(row.get(name, math.nan), unit, most) for name in names]) for model, row in errors.items()]
    legend = [(step, f"{unit.scale * most * step / STEPS:.0f}") for step in range(0, STEPS + 1, MARKED)]
    return HeatMap(title, groups, list(names), rows, legend)


def _cell(value: float, unit: Unit, most: float) -> tuple[str, int | None]:
    return ("–", None) if math.isnan(value) else (unit.number(value), round(STEPS * value / (most or 1)))


@cache
def scale() -> list[tuple[int, str, str]]:
    """Return the steps of the colour scale: number, colour, and black or white text, whichever stands out."""
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    colours = [mpl.colormaps[COLOURS](step / STEPS)[:3] for step in range(STEPS + 1)]
    return [(step, to_hex(colour), readable_on(colour)) for step, colour in enumerate(colours)]


def readable_on(colour: Iterable[float]) -> str:
    """Return black or white, whichever has the larger contrast (WCAG 2, relative luminance) on this sRGB colour."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


DETAILED = 60
"""Models whose errors are shown at each severity, too: the first of the ranks."""


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
        label, scenario = evaluation.resolve()
        records = {model: record for model in models if (record := board.record(model, evaluation))}
        if not isinstance(scenario, Corruption) or not records:
            continue
        pages = task_named(next(iter(records.values())).spec.data.task).pages
        first_records = dict(list(records.items())[:PANELS])
        maps = _maps({model: pages.by_corruption(record) for model, record in first_records.items()}, scenario, pages)
        title, out = f"{title_of(label, scenario)} ({scenario.made})", len(records) - len(first_records)
        labelled = pages.unit.label(pages.error)
        curves = _curves(first_records, scenario, pages, title)
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
