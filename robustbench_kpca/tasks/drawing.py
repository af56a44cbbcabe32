"""Pictures of samples and of what a model makes of them, ready to be rendered."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Drawing:
    """Rows of pictures.

    Attributes:
        title: of the whole.
        rows: one a sample: uint8 pictures (height, width, 3).
        row_titles: one a row.
        column_titles: one a column.
        legend: what colours (red, green, blue; 0 to 255) mean.
        summary: one line on what is seen.

    """

    title: str
    rows: Sequence[Sequence[Pixels]]
    row_titles: Sequence[str]
    column_titles: Sequence[str]
    legend: Sequence[tuple[str, Colour]]
    summary: str
