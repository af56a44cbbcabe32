"""Heat maps of errors under corruption, as tables whose columns are aligned across models.

The colour scale is fixed: a colour means the same error on every page. Where a unit has no largest value, as
perplexity, the scale ends at the largest value of the map. Tables are small, are read aloud, copied and printed, and
their numbers are text.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Unit
from robustbench_kpca.protocols.corruption_names import canonical, group_of

COLOURS = "magma_r"
"""A small error is light and a large one dark, also in print and for readers who are colour-blind."""
STEPS = 25
"""Colours between an error of 0 and the largest."""
MARKED = 5
"""Every so many steps, the legend says what a colour stands for."""


@dataclass(frozen=True)
class HeatMap:
    """A table of errors: rows are models, columns corruptions by group.

    Attributes:
        title: what the errors are of.
        groups: group of corruptions -> number of its columns.
        columns: names of the corruptions.
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
        title: what they are of.
        unit: how errors are written.

    Raises:
        BadInputError: an error below 0 or above the largest value.
    """
    values = [value for row in errors.values() for value in row.values()]
    most = max((value for value in values if math.isfinite(value)), default=1.0) if unit.full is None else unit.full
    odd = [f"{value:g}" for value in values if not math.isnan(value) and not 0 <= value <= most]
    if odd:
        raise BadInputError(f"errors {', '.join(odd[:5])}", expected=f"numbers between 0 and {most:g}")
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
