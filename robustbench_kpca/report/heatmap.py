"""Figures of corruption: the error of every cell with its number, and a quantity such as accuracy against severity.

Both figures are SVG text that needs no file beside it. The colour scale is fixed: a colour means the same error on
every page.
"""

import io
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, product
from textwrap import fill
from typing import TYPE_CHECKING, Any

import pandas as pd

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Unit
from robustbench_kpca.protocols.corruption_names import canonical, group_of
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.report.plots import STYLE, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "magma_r"
"""A small error is light and a large one dark, also in print and for readers who are colour-blind."""
GAP = 0.75
"""Height of a group's heading, in rows."""
_TEXT: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
}  # numbers stay text to search, and $ is a dollar


def heatmap(errors: pd.DataFrame, title: str, what: str = "top-1 error", unit: Unit = PERCENT) -> str:
    """Draw the error of each corruption (rows, grouped) at each severity (columns).

    Args:
        errors: in [0, 1], or NaN where not measured; rows and columns in any order.
        title: what is shown above.
        what: kind of error, beside the scale.
        unit: how errors are written.

    Returns:
        The text of an SVG; empty where there are no errors.

    Raises:
        BadInputError: an error outside [0, 1], or a cell given twice.

    """
    if errors.empty:
        return ""
    rows, columns = [str(name) for name in errors.index], [int(str(level)) for level in errors.columns]
    values = dict(zip(product(rows, columns), errors.to_numpy(dtype=float).ravel().tolist(), strict=True))
    odd = [f"{value:g}" for value in values.values() if not math.isnan(value) and not 0 <= value <= 1]
    if odd or len(values) < errors.size:
        met = f"errors {', '.join(odd[:5])}" if odd else f"{errors.size - len(values)} cells given twice"
        raise BadInputError(met, expected="each cell once, between 0 and 1")
    names, levels = canonical(rows), sorted(set(columns))
    groups = [(group, list(members)) for group, members in groupby(names, key=group_of)]
    height = len(names) + GAP * len(groups)
    width = 0.52 * len(levels) + 1.4 + _inches(names)
    with _drawing((width, 0.25 * height + 0.9)) as (figure, buffer):
        axis = figure.subplots()
        places: dict[str, float] = {}
        top = 0.0
        for group, members in groups:
            axis.text(0, top + 0.8 * GAP, group, fontsize=8, color="0.35", style="italic")
            places |= {name: top + GAP + row for row, name in enumerate(members)}
            top += GAP + len(members)
        for (name, level), value in values.items():
            _cell(axis, levels.index(level), places[name], value, unit)
        axis.set_yticks([place + 0.5 for place in places.values()], [_printable(name) for name in places])
        axis.set_xticks([column + 0.5 for column in range(len(levels))], [str(level) for level in levels])
        axis.set(xlim=(0, len(levels)), ylim=(height, 0), xlabel="severity")
        figure.suptitle(fill(_printable(title), int(13 * width)), x=0.02, ha="left", fontsize=10)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        _scale(figure, axis, unit.label(what))
    return _text(buffer)


def against_severity(
    curves: Mapping[str, Sequence[Estimate | None]], what: str = "accuracy", unit: Unit = PERCENT
) -> str:
    """Draw a quantity against severity, one line with its 95 % band per model.

    Args:
        curves: by model, its values at severity 0 (the images as they are), 1, 2, ...; None where not measured.
        what: name of the quantity, beside the axis.
        unit: how values are written.

    Returns:
        The text of an SVG; empty where nothing was measured.

    """
    severities = range(max((len(curve) for curve in curves.values()), default=0))
    if all(estimate is None for curve in curves.values() for estimate in curve):
        return ""
    with _drawing((4.6 + _inches(curves), 3.4)) as (figure, buffer):
        axis = figure.subplots()
        lines = []
        for number, curve in enumerate(curves.values()):
            style: dict[str, Any] = line_style(number)
            value, low, high = (_along(curve, name, unit) for name in ("value", "low", "high"))
            lines += axis.plot(range(len(curve)), value, marker="o", markersize=3, **style)
            axis.fill_between(range(len(curve)), low, high, color=style["color"], alpha=0.12, linewidth=0)
        axis.set_xticks(severities, ["clean", *map(str, severities[1:])])
        axis.set(xlabel="severity", ylabel=unit.label(what), ylim=unit.ends)
        axis.grid(alpha=0.25)
        figure.legend(lines, [_printable(model) for model in curves], loc="outside right center", frameon=False)
    return _text(buffer)


def _along(curve: Sequence[Estimate | None], name: str, unit: Unit) -> list[float]:
    """Return one of an estimate's numbers along a curve, NaN where not measured: there the line is broken."""
    return [math.nan if estimate is None else unit.scale * float(getattr(estimate, name)) for estimate in curve]


def _inches(labels: Iterable[str]) -> float:
    """Room for the longest of these labels."""
    return 0.085 * max(len(label) for label in labels)


def _cell(axis: "Axes", column: int, top: float, value: float, unit: Unit) -> None:
    """Draw one cell with its number in black or white, whichever stands out; grey where not measured."""
    import matplotlib as mpl
    from matplotlib.patches import Rectangle

    measured = not math.isnan(value)
    colour = mpl.colormaps[COLOURS](value)[:3] if measured else (0.9, 0.9, 0.9)
    axis.add_patch(Rectangle((column, top), 1, 1, facecolor=colour, edgecolor="white", linewidth=1))
    axis.text(
        column + 0.5, top + 0.5, unit.number(value) if measured else "–",
        ha="center", va="center", fontsize=8, color=readable_on(colour),
    )  # fmt: skip


def readable_on(colour: tuple[float, float, float]) -> str:
    """Return black or white, whichever has the larger contrast (WCAG 2, relative luminance) on this sRGB colour."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def _scale(figure: "Figure", axis: "Axes", what: str) -> None:
    """Add the colour scale from 0 to 100 %, in few enough steps that it stays a drawing and no picture."""
    import matplotlib as mpl
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    steps = ScalarMappable(Normalize(0, 100), mpl.colormaps[COLOURS].resampled(25))
    bar = figure.colorbar(steps, ax=axis, label=what, ticks=range(0, 101, 20), aspect=30, pad=0.02)
    bar.outline.set_visible(False)


@contextmanager
def _drawing(inches: tuple[float, float]) -> Iterator[tuple["Figure", io.StringIO]]:
    """Give a figure to draw on; when left, its SVG is in the buffer."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, **_TEXT}), warnings.catch_warnings():
        # who views the text brings the glyphs; matplotlib's own font only measures it
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure, buffer = Figure(figsize=inches, layout="constrained"), io.StringIO()
        FigureCanvasSVG(figure)
        yield figure, buffer
        figure.savefig(buffer, format="svg", metadata={"Date": None})


def _text(buffer: io.StringIO) -> str:
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _printable(text: str) -> str:
    """Replace what XML or a line cannot hold."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
