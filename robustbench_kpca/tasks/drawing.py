"""A table of pictures of samples and predictions, independent of the output format."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Drawing:
    """Rows of pictures with titles and a legend.

    Attributes:
        rows: one row per sample, of uint8 pictures (height, width, 3).
        legend: (meaning, colour); colours are (red, green, blue), 0 to 255.
    """

    rows: Sequence[Sequence[Pixels]]
    row_titles: Sequence[str]
    column_titles: Sequence[str]
    legend: Sequence[tuple[str, Colour]]
    summary: str
