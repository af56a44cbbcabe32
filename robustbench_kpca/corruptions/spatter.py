"""Spatter: drops of water (severities 1 to 3) or of mud on the lens.

Hendrycks & Dietterich (2019), arXiv:1903.12261, one of the four extra corruptions; parameters of the released
`create_c` scripts (224 px and CIFAR). Those scripts blend the mud in single precision, imagecorruptions in double.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from robustbench_kpca.corruptions.shared.kernels import Pixels, truncate

Layer = NDArray[np.floating[Any]]
Smooth = Callable[[Layer, float], Layer]

UNIT = np.arange(256, dtype=np.float32) / np.float32(255)
WATER = np.array([175, 238, 238]) / 255.0  # pale turquoise
MUD = np.array([63, 42, 20]) / 255.0
RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])  # emboss filter
REACH = 4  # standard deviations at which the Gaussians are cut off


class Drops(NamedTuple):
    """Noise of `mean` and `deviation`, smoothed by `sigma` pixels, is liquid where it exceeds `level`.

    `cover`: for water its strength, in [0, 1]; for mud the sigma, in pixels, that smooths its edge. `mix`: the
    precision in which mud is blended with the image; None for water.
    """

    mean: float
    deviation: float
    sigma: float
    level: float
    cover: float
    mix: type[np.floating[Any]] | None = None


WET = (Drops(0.65, 0.3, 4, 0.69, 0.6), Drops(0.65, 0.3, 3, 0.68, 0.6), Drops(0.65, 0.3, 2, 0.68, 0.5))
DIRTY = (Drops(0.65, 0.3, 1, 0.65, 1.5, mix=np.float32), Drops(0.67, 0.4, 1, 0.65, 1.5, mix=np.float32))


class Spatter:
    """Water: min(x + m * turquoise, 1); mud: (1 - m) * x + m * brown; m is the liquid's thickness in [0, 1]."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[Drops, ...]]] = {
        "imagenet_c": (*WET, *DIRTY),
        "imagecorruptions": (*WET, *(drops._replace(mix=np.float64) for drops in DIRTY)),
        "cifar_c": (
            Drops(0.62, 0.1, 0.7, 0.7, 0.5),
            Drops(0.65, 0.1, 0.8, 0.7, 0.5),
            Drops(0.65, 0.3, 1, 0.69, 0.5),
            Drops(0.65, 0.1, 0.7, 0.69, 0.6, mix=np.float32),
            Drops(0.65, 0.1, 0.5, 0.68, 0.6, mix=np.float32),
        ),
    }

    def exact(self, image: Pixels, parameter: Drops, rng: np.random.RandomState) -> Pixels:
        """Spatter, with noise drawn and smoothed in double precision.

        The reference divides 0 by 0 if there are no drops (on small images); here such an image stays unchanged.
        """
        noise = rng.normal(parameter.mean, parameter.deviation, image.shape[:2])
        return _splash(image, parameter, _smooth_exactly(noise, parameter.sigma), _smooth_exactly)

    def fast(self, image: Pixels, parameter: Drops, rng: np.random.Generator) -> Pixels:
        """Spatter, with noise drawn and smoothed in single precision."""
        liquid = _smooth(rng.standard_normal(image.shape[:2], np.float32), parameter.sigma)
        liquid *= parameter.deviation
        liquid += parameter.mean
        return _splash(image, parameter, liquid, _smooth)


def _splash(image: Pixels, drops: Drops, liquid: Layer, smooth: Smooth) -> Pixels:
    unit = np.asarray(cv2.LUT(image, UNIT), np.float32)
    if drops.mix is None:
        liquid[liquid < drops.level] = 0
        thickness = _water(liquid, drops.cover)
        return truncate(_tint(unit, thickness, WATER.astype(np.float32)) * 255)
    thickness = smooth((liquid > drops.level).astype(np.float32), drops.cover)
    thickness[thickness < 0.8] = 0
    clear = 1 - thickness
    unit *= np.asarray(cv2.merge([clear, clear, clear]), np.float32)
    return truncate(_tint(unit, thickness, MUD.astype(drops.mix)) * 255)


def _tint(unit: NDArray[np.float32], thickness: Layer, colour: Layer) -> Layer:
    """Add `thickness` times the colour; clip values at 1."""
    tint: Layer = np.asarray(cv2.merge([share * thickness for share in colour]), np.result_type(colour, thickness))
    tint += unit
    return np.minimum(tint, 1)


def _water(liquid: Layer, cover: float) -> Layer:
    """Return the thickness of water: the liquid embossed by the distance to its edges; at most `cover`."""
    depth = (liquid * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(depth, 50, 150), cv2.DIST_L2, 5)
    nearness = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
    relief = cv2.filter2D(cv2.equalizeHist(nearness), cv2.CV_8U, RELIEF)
    thickness: Layer = np.asarray(cv2.blur(relief, (3, 3)), np.float32)
    thickness *= depth
    if thickness.any():
        thickness /= thickness.max()
        thickness *= cover
    return thickness


def _smooth_exactly(layer: Layer, sigma: float) -> Layer:
    return np.asarray(gaussian_filter(layer, sigma, mode="nearest", truncate=REACH), layer.dtype)


def _smooth(layer: Layer, sigma: float) -> Layer:
    side = 2 * int(REACH * sigma + 0.5) + 1
    return np.asarray(cv2.GaussianBlur(layer, (side, side), sigma, borderType=cv2.BORDER_REPLICATE), layer.dtype)


CORRUPTION = Spatter()
