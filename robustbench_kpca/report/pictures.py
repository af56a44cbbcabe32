"""Pictures of what a model is shown, and of what it makes of scenes, as PNG or HTML."""

import base64
import io
import warnings
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image

from robustbench_kpca._core.web import asset
from robustbench_kpca._core.web.as_html import html as as_html
from robustbench_kpca._core.web.document import Document, Widget
from robustbench_kpca.tasks.drawing import Drawing

Picture = NDArray[np.generic]
CELL_WIDTH = 2.6  # inches
Legend: TypeAlias = Sequence[tuple[str, tuple[int, int, int]]]
"""What colours (red, green, blue; 0 to 255) mean."""


def grid(
    rows: Sequence[Sequence[Picture]],
    row_titles: Sequence[str],
    column_titles: Sequence[str],
    *,
    cell: tuple[float, float] = (1.5, 1.6),
    legend: Legend = (),
) -> bytes:
    """Draw images (height, width, 3; uint8 or floats in [0, 1]) in a grid; return a PNG.

    `cell` is the width and height of an image's place in inches, of 120 pixels.
    """
    width = cell[0] * len(rows[0]) + 1.3
    entry = 0.7 + 0.075 * max((len(name) for name, _ in legend), default=0)  # inches: a patch, and letters of 8 points
    columns = max(1, int(width / entry))
    size = (width, cell[1] * len(rows) + 0.2 * -(-len(legend) // columns))
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for r, images in enumerate(rows):
        for c, image in enumerate(images):
            axis = axes[r][c]
            axis.imshow(image, interpolation="nearest", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            if r == 0:
                axis.set_title(column_titles[c], fontsize=8, parse_math=False)
        axes[r][0].set_ylabel(row_titles[r], fontsize=8, parse_math=False)
    if legend:
        handles = [Patch(facecolor="#{:02x}{:02x}{:02x}".format(*colour)) for _, colour in legend]
        names = [name for name, _ in legend]
        drawn = figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
        for text in drawn.get_texts():
            text.set_parse_math(False)  # names are anybody's: a $ is a $
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks is drawn as a box, which says it
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def page(
    rows: Sequence[Sequence[Picture]],
    row_titles: Sequence[str],
    column_titles: Sequence[str],
    *,
    title: str = "Corruptions",
    legend: Legend = (),
) -> bytes:
    """Show uint8 images (height, width, 3) in a table, every pixel as it is; return one self-contained HTML page."""
    shown = [(name, [_data_uri(image) for image in images]) for name, images in zip(row_titles, rows, strict=True)]
    values = {"rows": shown, "columns": column_titles, "legend": legend}
    table = Widget("pictures.html.j2", "report", values)
    return as_html(Document(title, [table], style=asset("report", "pictures.css"))).encode()


def _data_uri(image: Picture) -> str:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(image, np.uint8)).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def render(drawing: Drawing, *, html: bool) -> bytes:
    """Render a drawing as an HTML page, or as a PNG."""
    if html:
        return page(drawing.rows, drawing.row_titles, drawing.column_titles, title=drawing.title, legend=drawing.legend)
    tallest = max(row[0].shape[0] / row[0].shape[1] for row in drawing.rows)
    cell = (CELL_WIDTH, CELL_WIDTH * min(tallest, 1.5) + 0.1)
    return grid(drawing.rows, drawing.row_titles, drawing.column_titles, cell=cell, legend=drawing.legend)
