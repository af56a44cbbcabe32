"""Enlarge the middle of an image as `scipy.ndimage.zoom` with order 1: bilinear, with aligned corner pixels.

The clipped zoom of Hendrycks & Dietterich (2019), arXiv:1903.12261, shared by zoom blur and snow.
"""

import math
from functools import lru_cache
from typing import NamedTuple, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

Plane = TypeVar("Plane", NDArray[np.float32], NDArray[np.float64])


class Axis(NamedTuple):
    """Output k is low[k] * in[first[k]] + high[k] * in[second[k]]; both weights are 0 for k >= `outside`."""

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    outside: int


def middle(length: int, factor: float) -> tuple[int, int, int]:
    """Return start and size of the part to enlarge, and its enlarged size (`length`, up to rounding)."""
    size = math.ceil(length / float(factor))
    return (length - size) // 2, size, round(size * factor)


@lru_cache(maxsize=256)
def axis(length: int, factor: float) -> Axis:
    """Return the weights along one axis; a last position beyond the last pixel by rounding gets 0, as in scipy."""
    start, size, enlarged = middle(length, factor)
    step = (size - 1) / (enlarged - 1) if enlarged > 1 else 1.0
    position = np.arange(enlarged) * step
    first = np.minimum(np.floor(position).astype(np.intp), size - 1)
    low = 1 - (position - np.floor(position))
    inside = position <= size - 1
    low, high = np.where(inside, low, 0), np.where(inside, 1 - low, 0)  # 1 - low after rounding, as in scipy
    return Axis(start + first, start + np.minimum(first + 1, size - 1), low, high, int(inside.sum()))


def zoom_exactly(image: Plane, factor: float) -> Plane:
    """Enlarge the middle of (height, width) or (height, width, channel), identical to scipy bit for bit."""
    rows, columns = axis(image.shape[0], factor), axis(image.shape[1], factor)
    down, right = (-1, *(1,) * (image.ndim - 1)), (-1, *(1,) * (image.ndim - 2))
    above = image[rows.first] * rows.low.reshape(down)
    below = image[rows.second] * rows.high.reshape(down)
    low, high = columns.low.reshape(right), columns.high.reshape(right)
    enlarged = above[:, columns.first] * low
    enlarged += above[:, columns.second] * high
    enlarged += below[:, columns.first] * low
    enlarged += below[:, columns.second] * high
    return enlarged.astype(image.dtype)


def zoom(image: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """Enlarge the middle in single precision; needs OpenCV 5, because version 4 rounds positions to 1/32 pixel."""
    rows, columns = axis(image.shape[0], factor), axis(image.shape[1], factor)
    sides = [middle(length, factor) for length in image.shape[:2]]
    steps = [(size - 1) / max(enlarged - 1, 1) for _, size, enlarged in sides]
    backwards = np.array([[steps[1], 0, sides[1][0]], [0, steps[0], sides[0][0]]])
    shape = sides[1][2], sides[0][2]
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    enlarged = np.asarray(
        cv2.warpAffine(image, backwards, shape, flags=flags, borderMode=cv2.BORDER_REPLICATE), np.float32
    )
    enlarged[rows.outside :], enlarged[:, columns.outside :] = 0, 0
    return enlarged
