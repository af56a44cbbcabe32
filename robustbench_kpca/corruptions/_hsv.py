"""Change saturation and value in HSV, with the rounding of scikit-image's two conversions but less memory.

HSV: Smith (1978), "Color gamut transform pairs", SIGGRAPH. With V the largest channel, m the smallest, S = (V - m) / V
and hue H in [0, 1), the new channels are v = V', p = V' (1 - S') and, between them, V' (1 - g S'), where g measures the
position of H within its sextant. Operations keep the order of `skimage.color`, so levels are identical to the bit;
functions of a single 8-bit level are read from a table.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.corruptions.shared.kernels import Pixels

Plane = NDArray[np.float64]
UNIT: Plane = np.arange(256) / 255.0
VALUE, LOWEST, BETWEEN = range(3)
# The channel values of red, green, blue in each sextant of the hue; the last row is for a hue rounded up to 1.
ORDER = np.array(
    [
        [VALUE, BETWEEN, LOWEST],
        [BETWEEN, VALUE, LOWEST],
        [LOWEST, VALUE, BETWEEN],
        [LOWEST, BETWEEN, VALUE],
        [BETWEEN, LOWEST, VALUE],
        [VALUE, LOWEST, BETWEEN],
        [VALUE, BETWEEN, LOWEST],
    ],
    dtype=np.int32,
)


def recolour(image: Pixels, *, lift: float = 0.0, gain: float = 1.0, offset: float = 0.0) -> Pixels:
    """Return `image` with V' = V + lift and S' = gain S + offset, both kept in [0, 1]; levels are truncated."""
    red, green, blue = (np.asarray(channel, np.uint8) for channel in cv2.split(image))
    top = np.maximum(np.maximum(red, green), blue)
    low = np.minimum(np.minimum(red, green), blue)
    delta = _look_up(top, UNIT) - _look_up(low, UNIT)
    value = _look_up(top, np.clip(UNIT + lift, 0, 1))
    saturation = np.clip(delta / np.maximum(_look_up(top, UNIT), UNIT[1]) * gain + offset, 0, 1)
    sextant, into = _hue(red, green, blue, top, delta)
    choices = np.empty((*top.shape, 3), np.uint8)
    choices[..., VALUE] = value * 255
    choices[..., LOWEST] = value * (1 - saturation) * 255
    into *= saturation
    choices[..., BETWEEN] = value * (1 - into) * 255
    place = ORDER.take(sextant, axis=0)
    place += np.arange(0, choices.size, 3, dtype=np.int32).reshape(*top.shape, 1)
    return choices.ravel().take(place)


def _look_up(levels: Pixels, table: Plane) -> Plane:
    return np.asarray(cv2.LUT(levels, table), np.float64)


def _hue(red: Pixels, green: Pixels, blue: Pixels, top: Pixels, delta: Plane) -> tuple[NDArray[np.int32], Plane]:
    """Return the sextant of each pixel's hue, and g (see the module)."""
    from_blue, from_green = blue == top, green == top  # for equal maxima, the later channel determines the sextant
    ahead = np.where(from_blue, red, np.where(from_green, blue, green))
    behind = np.where(from_blue, green, np.where(from_green, red, blue))
    grey = delta == 0
    hue = _look_up(ahead, UNIT) - _look_up(behind, UNIT)
    hue /= np.where(grey, 1, delta)
    hue += np.where(from_blue, 4.0, np.where(from_green, 2.0, 0.0))
    hue /= 6
    hue += hue < 0
    hue[grey] = 0
    hue *= 6
    whole = np.floor(hue)
    hue -= whole
    sextant = whole.astype(np.int32)
    return sextant, np.where(sextant & 1, hue, 1 - hue)
