"""Pictures of what a model is shown, and of what it makes of scenes, as PNG."""

import io
import warnings
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

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
            text.set_parse_math(False)  # a name may contain a $, which is no formula
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks is drawn as a box, so no warning is needed
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def render(drawing: Drawing) -> bytes:
    """Render a drawing as a PNG."""
    tallest = max(row[0].shape[0] / row[0].shape[1] for row in drawing.rows)
    cell = (CELL_WIDTH, CELL_WIDTH * min(tallest, 1.5) + 0.1)
    return grid(drawing.rows, drawing.row_titles, drawing.column_titles, cell=cell, legend=drawing.legend)
