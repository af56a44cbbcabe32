"""Choose colours for the classes of masks that are as different as possible."""

import numpy as np
from numpy.typing import NDArray

_STEP = 15  # 0, 15, ..., 255: 18 levels per channel
_WEIGHTS = (2, 4, 3)  # weights of squared differences in red, green and blue, roughly as in human vision
_TAKEN = ((0, 0, 0), (255, 255, 255))  # black marks ignored pixels


def distinct_colours(classes: int) -> NDArray[np.uint8]:
    """Return uint8 (classes, 3); each colour has the largest distance from all earlier ones, black and white.

    The first colours do not depend on `classes`. After about 5,800 colours they repeat.
    """
    levels = np.arange(0, 256, _STEP)
    lattice = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    nearest = np.min([_distances(lattice, np.array(colour)) for colour in _TAKEN], axis=0)
    colours = np.empty((classes, 3), np.uint8)
    for label in range(classes):
        colours[label] = lattice[nearest.argmax()]
        nearest = np.minimum(nearest, _distances(lattice, colours[label].astype(np.int64)))
    return colours


def _distances(lattice: NDArray[np.int64], colour: NDArray[np.int64]) -> NDArray[np.int64]:
    squared: NDArray[np.int64] = (lattice - colour) ** 2 @ np.array(_WEIGHTS)
    return squared
