"""Snow: add thresholded, enlarged and motion-blurred noise to a whitened image.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR). Those
crop the enlarged layer to its centre and store it in 8 bits before ImageMagick blurs it; imagecorruptions (Michaelis et
al., 2019, arXiv:1907.07484) blurs the whole layer unrounded and then keeps its top left corner. Here all profiles use
the blur kernel of imagecorruptions, and its result is rounded to 8 bits: ImageMagick may differ by a level.
"""

from typing import ClassVar, NamedTuple, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.corruptions._motion import blur, blur_exactly, line
from robustbench_kpca.corruptions._zoom import middle, zoom, zoom_exactly
from robustbench_kpca.corruptions.shared.kernels import Pixels, truncate

Plane = TypeVar("Plane", NDArray[np.float32], NDArray[np.float64])
FALL = (-135, -45)  # degrees; the direction of the blur is uniform in this range


class Flakes(NamedTuple):
    """Noise of `mean` and `deviation`, enlarged `zoom` times, is snow where it exceeds `threshold`.

    `radius`, `sigma`: of the motion blur, in pixels. `share`: weight of the original image, the rest is whitened.
    `scripted`: crop and round before the blur, as the released scripts do.
    """

    mean: float
    deviation: float
    zoom: float
    threshold: float
    radius: int
    sigma: float
    share: float
    scripted: bool = False


def _flakes(*rows: tuple[float, float, float, float, int, int, float]) -> tuple[Flakes, ...]:
    return tuple(Flakes(*row) for row in rows)


IMAGENET = _flakes(
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
CIFAR = _flakes(
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)


class Snow:
    """min(k x + (1 - k) max(x, 1.5 grey(x) + 0.5) + s + s rotated by 180 degrees, 1), with s the layer of snow."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[Flakes, ...]]] = {
        "imagenet_c": tuple(row._replace(scripted=True) for row in IMAGENET),
        "imagecorruptions": IMAGENET,
        "cifar_c": tuple(row._replace(scripted=True) for row in CIFAR),
    }

    def exact(self, image: Pixels, parameter: Flakes, rng: np.random.RandomState) -> Pixels:
        """Add snow, computed in double precision."""
        height, width, _ = image.shape
        layer = zoom_exactly(rng.normal(parameter.mean, parameter.deviation, (height, width)), parameter.zoom)
        layer[layer < parameter.threshold] = 0
        np.minimum(layer, 1, out=layer)
        if parameter.scripted:
            layer = np.floor(_centre(layer, height, width) * 255) / 255
        taps = line(parameter.radius, parameter.sigma, rng.uniform(*FALL), *layer.shape)
        flakes = np.round(blur_exactly(layer, taps)[:height, :width] * 255) / 255
        unit = np.asarray(image.astype(np.float32) / 255, np.float32)
        snowy = _whiten(unit, parameter.share, 1.0).astype(np.float64)
        snowy += np.asarray(cv2.merge([flakes] * 3), np.float64)
        snowy += np.asarray(cv2.merge([cv2.rotate(flakes, cv2.ROTATE_180)] * 3), np.float64)
        return (np.minimum(snowy, 1) * 255).astype(np.uint8)

    def fast(self, image: Pixels, parameter: Flakes, rng: np.random.Generator) -> Pixels:
        """Add snow in single precision; noise is drawn only in the middle that is enlarged."""
        height, width, _ = image.shape
        layer = zoom(_noise(height, width, parameter, rng), parameter.zoom)
        layer[layer < parameter.threshold] = 0
        np.minimum(layer, 1, out=layer)
        if parameter.scripted:
            layer = np.asarray(np.floor(_centre(layer, height, width) * 255) / 255, np.float32)
        taps = line(parameter.radius, parameter.sigma, rng.uniform(*FALL), *layer.shape)
        flakes = np.rint(blur(layer, taps)[:height, :width] * 255)
        flakes += cv2.rotate(flakes, cv2.ROTATE_180)
        snowy = _whiten(image.astype(np.float32), parameter.share, 255.0)
        snowy += np.asarray(cv2.merge([flakes] * 3), np.float32)
        return truncate(snowy)


def _noise(height: int, width: int, flakes: Flakes, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw the noise of the middle part, which is enlarged; the rest is 0."""
    (top, high, _), (left, wide, _) = middle(height, flakes.zoom), middle(width, flakes.zoom)
    noise = np.zeros((height, width), np.float32)
    drawn = noise[top : top + high, left : left + wide]
    drawn[...] = rng.standard_normal((high, wide), np.float32)
    drawn *= flakes.deviation
    drawn += flakes.mean
    return noise


def _centre(layer: Plane, height: int, width: int) -> Plane:
    top, left = (layer.shape[0] - height) // 2, (layer.shape[1] - width) // 2
    return layer[top : top + height, left : left + width]


def _whiten(picture: NDArray[np.float32], share: float, white: float) -> NDArray[np.float32]:
    """Mix the image (levels from 0 to `white`) with max(image, 1.5 grey + white / 2)."""
    grey = np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.float32)
    grey *= 1.5
    grey += white / 2
    bright = np.maximum(picture, np.asarray(cv2.merge([grey] * 3), np.float32))
    bright *= 1 - share
    picture *= share
    picture += bright
    return picture


CORRUPTION = Snow()
