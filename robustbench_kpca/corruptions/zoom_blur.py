"""Zoom blur: average the image with enlarged copies of its middle, like a camera zooming during exposure.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR). They
crop an enlarged middle to its centre, Michaelis et al. (2019), arXiv:1907.07484, to its top left: with these factors
it is at most one pixel too large, so both crops are the same.
"""

from functools import cache
from typing import ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.corruptions._zoom import axis, zoom
from robustbench_kpca.corruptions.shared.kernels import LEVELS, Pixels, parameters_of, settle, truncate

Factors = tuple[float, ...]


def factors(stop: float, step: float) -> Factors:
    """Return 1, 1 + step, ... below `stop`, by `np.arange`, whose rounding may include `stop`."""
    return tuple(np.arange(1, stop, step).tolist())


IMAGENET = tuple(factors(*pair) for pair in ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)))
CIFAR = tuple(factors(stop, 0.01) for stop in (1.06, 1.11, 1.16, 1.21, 1.26))


def mean(unit: NDArray[np.float32], layers: list[NDArray[np.float32]]) -> Pixels:
    """Average in the reference's order and precision, and convert to 8 bits."""
    total = np.zeros_like(unit)
    for layer in layers:
        total += layer
    average = (unit + total) / np.float32(len(layers) + 1)
    return truncate(average.clip(0, 1) * np.float32(255))


@cache
def flat(count: int) -> Pixels:
    """Return the stored level where all neighbours have the same level, for each level."""
    unit = LEVELS.astype(np.float32)
    return mean(unit, [unit] * count)


def blur(image: Pixels, zooms: Factors) -> NDArray[np.float32]:
    """Average levels in single precision, with a fourth channel: OpenCV warps four channels faster than three."""
    height, width = image.shape[:2]
    four = cv2.cvtColor(image, cv2.COLOR_RGB2RGBA).astype(np.float32)
    total = four.copy()
    for factor in zooms:
        cv2.accumulate(zoom(four, factor)[:height, :width], total)
    total *= 1 / (len(zooms) + 1)
    return np.asarray(cv2.cvtColor(total, cv2.COLOR_RGBA2RGB))


def at(image: NDArray[np.float32], factor: float, place: tuple[NDArray[np.intp], ...]) -> NDArray[np.float32]:
    """Return the enlarged middle at the given (rows, columns, channels), identical to scipy bit for bit."""
    row, column, channel = place
    above, below, top, bottom = (part[row] for part in axis(image.shape[0], factor)[:4])
    before, after, left, right = (part[column] for part in axis(image.shape[1], factor)[:4])
    value = image[above, before, channel] * top * left
    value += image[above, after, channel] * top * right
    value += image[below, before, channel] * bottom * left
    value += image[below, after, channel] * bottom * right
    return np.asarray(value, np.float32)


class ZoomBlur:
    """(x + sum_z zoom(x, z)) / (1 + number of factors z)."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[Factors, ...]]] = parameters_of(IMAGENET, cifar=CIFAR)

    def exact(self, image: Pixels, parameter: Factors, rng: object = None) -> Pixels:  # noqa: ARG002 (draws nothing)
        """Blur; `parameter` is the factors. Values close to an integer are recomputed as in the reference."""
        blurred = blur(image, parameter)
        levels = blurred.astype(np.uint8)
        tolerance = 255 * 4 * max(image.shape) * 2.0**-24  # rounding error of coordinates times the largest gradient
        place = np.nonzero(np.abs(blurred - np.rint(blurred)) < tolerance)
        unit = (image / 255.0).astype(np.float32)
        levels[place] = mean(unit[place], [at(unit, factor, place) for factor in parameter])
        return levels

    def fast(self, image: Pixels, parameter: Factors, rng: object = None) -> Pixels:  # noqa: ARG002
        """Blur in single precision."""
        return settle(blur(image, parameter), flat(len(parameter)))


CORRUPTION = ZoomBlur()
