"""Motion blur of images and of snow: average along a line, with repeated borders.

The weights are one-sided, w_i ~ exp(-i^2 / (2 sigma^2)) for i = 0 ... 2 radius, and tap i reads the pixel i steps along
the line, rounded to whole pixels. As in `imagecorruptions` (Michaelis et al., 2019, arXiv:1907.07484), the kernel ends
at the first tap whose offset exceeds a side of the image. The weights are not renormalised: small images get darker.
"""

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.corruptions.shared.kernels import Layer, Pixels

BAND = 64  # rows processed at a time, so that sums stay in the processor's cache


class Tap(NamedTuple):
    """out[y, x] gains weight * in[y + down, x + right]."""

    weight: np.float64
    down: int
    right: int


def line(radius: int, sigma: float, angle: float, height: int, width: int) -> list[Tap]:
    """Return the taps of a blur along `angle` (degrees; 0 right, 90 down) whose offsets fit into the image."""
    length = 2 * radius + 1
    weights = np.exp(-(np.arange(length) ** 2) / (2 * sigma**2)) / (np.sqrt(2 * np.pi) * sigma)
    weights = weights / np.sum(weights)
    sine, cosine = length * np.sin(np.deg2rad(angle)), length * np.cos(np.deg2rad(angle))
    norm = math.hypot(sine, cosine)
    taps = []
    for index, weight in enumerate(weights):
        down, right = math.ceil(index * sine / norm - 0.5), math.ceil(index * cosine / norm - 0.5)
        if abs(down) >= height or abs(right) >= width:
            break
        taps.append(Tap(weight, down, right))
    return taps


def padded(image: Layer, taps: list[Tap]) -> tuple[NDArray[Any], int, int]:
    """Repeat the borders as far as the taps reach; return the padded image and the position of the image's (0, 0)."""
    downs, rights = [tap.down for tap in taps], [tap.right for tap in taps]
    top, left = max(-min(downs), 0), max(-min(rights), 0)
    border = (top, max(*downs, 0), left, max(*rights, 0))
    return np.asarray(cv2.copyMakeBorder(image, *border, cv2.BORDER_REPLICATE)), top, left


def blur_exactly(image: Pixels | Layer, taps: list[Tap]) -> NDArray[np.float64]:
    """Blur (height, width) or (height, width, 3) in double precision, summing in the reference's order."""
    height, width = image.shape[:2]
    source, top, left = padded(image.astype(np.float64), taps)
    blurred = np.zeros(image.shape)
    for start in range(0, height, BAND):
        band = blurred[start : start + BAND]
        product = np.empty_like(band)
        for weight, down, right in taps:
            y, x = top + start + down, left + right
            np.multiply(source[y : y + len(band), x : x + width], weight, out=product)
            band += product
    return blurred


def blur(image: Pixels | Layer, taps: list[Tap]) -> NDArray[np.float32]:
    """Blur in single precision."""
    height, width = image.shape[:2]
    source, top, left = padded(image.astype(np.float32), taps)
    blurred = np.zeros(image.shape, np.float32)
    for weight, down, right in taps:
        y, x = top + down, left + right
        cv2.scaleAdd(source[y : y + height, x : x + width], float(weight), blurred, dst=blurred)
    return blurred
