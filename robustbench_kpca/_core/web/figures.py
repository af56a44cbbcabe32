"""Figures as SVG text inside a page: in the page's own ink, so also in the dark and in print, and named for readers."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from robustbench_kpca._core.errors import printable, printable_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#101112"
"""Stands for the colour of the page's text, which `svg_of` puts in its place."""
STYLE: dict[Any, Any] = {
    "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "rbk", "text.parse_math": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": "none", "figure.facecolor": "none",
    "savefig.facecolor": "none", "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK,
    "axes.titlecolor": INK, "xtick.color": INK, "ytick.color": INK, "legend.facecolor": "none",
    "axes.titlesize": 9, "axes.labelsize": 9,
}  # fmt: skip
"""Text stays text, to search and to copy; a $ is a dollar."""


@contextmanager
def drawing(inches: tuple[float, float], **style: Any) -> Iterator[tuple["Figure", io.StringIO]]:
    """Give a figure to draw on; when left, its SVG is in the buffer."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    settings: dict[Any, Any] = STYLE | style
    with mpl.rc_context(settings), warnings.catch_warnings():
        # who views the text brings the glyphs; matplotlib's own font only measures it
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure, buffer = Figure(figsize=inches, layout="constrained"), io.StringIO()
        FigureCanvasSVG(figure)
        yield figure, buffer
        for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) if axes.axison):
            if axis.get_scale() != "linear":  # by default its labels are formulas, which are not parsed here
                axis.set_major_formatter(lambda value, _: f"{value:g}")
            if axis.get_scale() == "log":
                axis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
        save(figure, buffer)


def save(figure: "Figure", buffer: io.StringIO) -> None:
    """Write a figure as SVG, laid out once: `savefig` lays out, and draws, whatever has a layout twice."""
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
        figure.set_layout_engine("none")
    figure.savefig(buffer, format="svg", metadata={"Date": None})


def on_white(svg: str) -> bytes:
    """Return the content of a file for a drawing, whose ink is that of a page: it stands on white there."""
    return svg.replace("<svg ", '<svg style="background: #fff" ', 1).encode()


def svg_of(buffer: io.StringIO, title: str) -> str:
    """Return the drawn SVG: in the page's ink, with a title that screen readers say."""
    text = buffer.getvalue()
    text = printable_lines(text[text.index("<svg") :]).replace(INK, "currentColor")
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(printable(title))}" ', 1)
