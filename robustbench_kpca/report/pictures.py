"""Pictures of what a model is shown: clean and adversarial images, and the grid of corruptions."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

Picture = NDArray[np.generic]


def grid(rows: Sequence[Sequence[Picture]], row_titles: Sequence[str], column_titles: Sequence[str]) -> bytes:
    """Draw images (height, width, 3; uint8 or floats in [0, 1]) in a grid; return a PNG."""
    figure = Figure(figsize=(1.5 * len(rows[0]) + 1.3, 1.6 * len(rows)), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for r, images in enumerate(rows):
        for c, image in enumerate(images):
            axis = axes[r][c]
            axis.imshow(image, interpolation="nearest", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            if r == 0:
                axis.set_title(column_titles[c], fontsize=8)
        axes[r][0].set_ylabel(row_titles[r], fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
