"""This project's own images of frost, generated from fixed seeds.

The five photographs used for the released data sets cannot be redistributed here. The generated images resemble them in
size, colour, brightness and in the contrast at each scale: crumpled ice, two panes of needles, leaves, feathers.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import cv2
import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from robustbench_kpca.corruptions.shared.kernels import Pixels

Plane = NDArray[np.float32]
Place = NDArray[np.float64]
Stroke = Callable[[Pixels, Place, float, RandomState], None]


class Pane(NamedTuple):
    """Statistics of a generated image: mean and deviation of red, green, blue, and the contrast at each scale.

    `octaves`: standard deviations, in levels, of the detail that successive Gaussian blurs of 1, 2, 4, ... pixels
    remove, and of the rest after the last blur.
    """

    shape: tuple[int, int]
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    octaves: tuple[float, ...]
    grow: Callable[[tuple[int, int], RandomState], Plane]
    tint: float = 0.0  # amplitude, in levels, of a slow colour variation of red


def _line(canvas: Pixels, start: Place, angle: float, length: float, level: int) -> None:
    """Draw an anti-aliased line; coordinates are in sixteenths of a pixel."""
    end = start + length * np.array([np.cos(angle), np.sin(angle)])
    points = np.rint(16 * np.array([start, end])).astype(np.int32)
    cv2.polylines(canvas, [points], isClosed=False, color=level, lineType=cv2.LINE_AA, shift=4)


def _grown(shape: tuple[int, int], rng: RandomState, count: int, stroke: Stroke) -> Plane:
    """Cover a mid-grey image with crystals at random places; later ones cover earlier ones."""
    canvas = np.full(shape, 110, np.uint8)
    for _ in range(count):
        stroke(canvas, rng.uniform(-20, 20 + np.array(shape[::-1])), rng.uniform(0, 2 * np.pi), rng)
    return canvas.astype(np.float32)


def _bundle(canvas: Pixels, start: Place, angle: float, rng: RandomState) -> None:
    """Draw a fan of needles from nearly one point."""
    reach = rng.gamma(4, 14)
    for _ in range(rng.randint(5, 14)):
        needle = start + rng.normal(0, 4, 2)
        _line(canvas, needle, angle + rng.normal(0, 0.16), reach * rng.uniform(0.4, 1), rng.randint(60, 256))


def _feather(canvas: Pixels, start: Place, angle: float, rng: RandomState) -> None:
    """Draw a spine with barbs on both sides, shorter towards its tip."""
    reach, level = rng.gamma(4, 9), rng.randint(70, 256)
    along, lean = np.array([np.cos(angle), np.sin(angle)]), rng.uniform(0.6, 1.1)
    for distance in np.arange(0, reach, 3.0):
        for side in (-1, 1):
            barb = 0.45 * (reach - distance) * rng.uniform(0.6, 1)
            _line(canvas, start + distance * along, angle + side * lean, barb, int(level * rng.uniform(0.6, 1)))
    _line(canvas, start, angle, reach, level)


def _leaf(canvas: Pixels, start: Place, angle: float, rng: RandomState) -> None:
    """Draw a rosette of pointed leaves, one half of each darker."""
    reach = rng.gamma(3, 3.5)
    for turn in np.arange(0, 2 * np.pi, 2 * np.pi / rng.randint(4, 9)):
        towards, level = angle + turn + rng.normal(0, 0.2), rng.randint(50, 236)
        along = np.array([np.cos(towards), np.sin(towards)]) * reach * rng.uniform(0.6, 1.3)
        aside = np.array([-along[1], along[0]]) * 0.18
        for half, shade in ((aside, 0), (-aside, 50)):
            corners = np.rint(16 * np.array([start, start + 0.4 * along + half, start + along])).astype(np.int32)
            cv2.fillPoly(canvas, [corners], color=max(level - shade, 0), lineType=cv2.LINE_AA, shift=4)


def _crumpled(shape: tuple[int, int], rng: RandomState) -> Plane:
    """Render a folded surface lit from above."""
    folds = np.zeros(shape, np.float32)
    for octave in range(6):
        folds -= 2.0**octave * np.abs(_cloud(shape, 2.0**octave, rng))
    return np.asarray(cv2.Sobel(folds, cv2.CV_32F, 0, 1), np.float32)


def _cloud(shape: tuple[int, int], size: float, rng: RandomState) -> Plane:
    """Return smooth noise of standard deviation 1."""
    cloud = cv2.GaussianBlur(rng.normal(size=shape).astype(np.float32), (0, 0), size)
    return np.asarray(cloud / cloud.std(), np.float32)


def _balance(rough: Plane, octaves: tuple[float, ...], rng: RandomState) -> Plane:
    """Scale each octave of detail to its standard deviation; the mean becomes 0."""
    balanced = octaves[-1] * _cloud(rough.shape, 2.0 ** (len(octaves) - 1), rng)
    for octave, deviation in enumerate(octaves[:-1]):
        smooth = np.asarray(cv2.GaussianBlur(rough, (0, 0), 2.0**octave), np.float32)
        detail = rough - smooth
        balanced += np.float32(deviation / detail.std()) * detail
        rough = smooth
    return balanced


_needles = partial(_grown, count=1500, stroke=_bundle)
_feathers = partial(_grown, count=2500, stroke=_feather)
_leaves = partial(_grown, count=3000, stroke=_leaf)
PANES = (
    Pane((600, 900), (78, 149, 166), (21, 16, 15), (6.9, 3.0, 2.1, 1.9, 2.4, 2.9, 12.2), _crumpled, tint=17),
    Pane((315, 560), (201, 205, 214), (21, 22, 23), (7.3, 4.1, 3.9, 3.4, 2.7, 2.3, 14.3), _needles),
    Pane((315, 560), (201, 205, 214), (21, 22, 23), (7.3, 4.1, 3.9, 3.4, 2.7, 2.3, 14.3), _needles),
    Pane((350, 527), (138, 153, 165), (28, 29, 30), (12.3, 6.2, 5.0, 3.9, 2.8, 2.3, 16.9), _leaves),
    Pane((495, 660), (112, 123, 135), (44, 43, 42), (15.3, 8.1, 8.0, 7.9, 7.1, 5.1, 26.0), _feathers),
)


@cache
def ice(index: int) -> Pixels:
    """Generate image `index` (0 to 4), RGB; the result is cached."""
    pane = PANES[index]
    rng = RandomState(index)  # its numbers are the same in every version of NumPy
    grey = _balance(pane.grow(pane.shape, rng), pane.octaves, rng)
    grey -= grey.mean()
    grey /= grey.std()
    drift = pane.tint * _cloud(pane.shape, 40, rng)
    channels = [mean + deviation * grey for mean, deviation in zip(pane.mean, pane.deviation, strict=True)]
    picture = np.stack([channels[0] + drift, channels[1], channels[2] - 0.4 * drift], axis=-1)
    levels: Pixels = np.clip(np.rint(picture), 0, 255).astype(np.uint8)
    levels.setflags(write=False)
    return levels
