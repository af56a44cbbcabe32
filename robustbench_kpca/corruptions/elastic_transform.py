"""Elastic transform: displace every pixel by a smooth random field, like stretching a rubber sheet.

Hendrycks & Dietterich (2019), arXiv:1903.12261; the displacement is uniform noise, smoothed (Simard, Steinkraus &
Platt, 2003). Two different corruptions carry this name. The released scripts (224 px and CIFAR) first move three points
at random and apply the affine map that they define; imagecorruptions (Michaelis et al., 2019, arXiv:1907.07484) omits
this step and scales the field's strength and smoothness with the image size.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn, idctn
from scipy.ndimage import gaussian_filter, map_coordinates

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.corruptions.shared.kernels import Layer, Pixels

UNIT = np.arange(256, dtype=np.float32) / np.float32(255)
REACH = 3  # standard deviations at which the Gaussian is cut off
LONG = 64  # pixels; larger kernels are faster with cosine transforms
FLAT = 1e-4  # levels; so that flat regions do not lose a level in single precision


class Warp(NamedTuple):
    """Displacement = alpha * smoothed by sigma (uniform in [-swing, swing]), in pixels.

    `move`: largest displacement, in pixels, of each coordinate of the three points of the affine map. None: no affine
    map, and `sigma` is a fraction of each side, `swing` of the height.
    """

    alpha: float
    sigma: float
    swing: float
    move: float | None


def _warps(side: float, shares: Sequence[tuple[float, float, float]]) -> tuple[Warp, ...]:
    return tuple(Warp(side * alpha, side * sigma, 1.0, side * move) for alpha, sigma, move in shares)


class ElasticTransform:
    """out[y, x] = in[y + dy, x + dx], linearly interpolated, borders mirrored."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[Warp, ...]]] = {
        "imagenet_c": _warps(
            244, [(2, 0.7, 0.1), (2, 0.08, 0.2), *((share, 0.01, 0.02) for share in (0.05, 0.07, 0.12))]
        ),
        "imagecorruptions": tuple(Warp(250 * share, 0.01, 0.005, None) for share in (0.05, 0.065, 0.085, 0.1, 0.12)),
        "cifar_c": _warps(
            32,
            [(0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)],
        ),
    }

    def exact(self, image: Pixels, parameter: Warp, rng: np.random.RandomState) -> Pixels:
        """Warp with displacements in double precision."""
        height, width, _ = image.shape
        unit = _moved(image, parameter, rng)
        sigma, swing = _absolute(parameter, height, width)
        place = np.mgrid[:height, :width].astype(np.float64)
        for axis in (1, 0):  # dx is drawn first
            noise = rng.uniform(-swing, swing, (height, width))
            field = gaussian_filter(noise, sigma, mode="reflect", truncate=REACH) * parameter.alpha
            place[axis] += field.astype(np.float32)
        warped = np.empty_like(unit)
        for channel in range(3):
            map_coordinates(unit[..., channel], place, output=warped[..., channel], order=1, mode="reflect")
        return (warped * 255).astype(np.uint8)

    def fast(self, image: Pixels, parameter: Warp, rng: np.random.Generator) -> Pixels:
        """Warp in single precision; affine map and field stay separate steps, because each interpolates."""
        height, width, _ = image.shape
        unit = _moved(image, parameter, rng)
        right, down = (_field(height, width, parameter, rng) for _ in range(2))
        right += np.arange(width, dtype=np.float32)
        down += np.arange(height, dtype=np.float32)[:, None]
        warped = cv2.remap(unit, right, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        return np.asarray(cv2.convertScaleAbs(warped, alpha=255, beta=FLAT - 0.5), np.uint8)  # convertScaleAbs rounds


def _moved(image: Pixels, warp: Warp, rng: np.random.RandomState | np.random.Generator) -> NDArray[np.float32]:
    """Return the image in [0, 1], after the random affine map if `warp.move` is given."""
    unit = np.asarray(cv2.LUT(image, UNIT), np.float32)
    return unit if warp.move is None else _affine(unit, rng.uniform(-warp.move, warp.move, (3, 2)))


def _field(height: int, width: int, warp: Warp, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw the displacement along one axis, in pixels."""
    sigma, swing = _absolute(warp, height, width)
    noise = rng.random((height, width), np.float32)
    noise -= 0.5
    noise *= 2 * swing * warp.alpha
    return _smooth(noise, sigma)


def _absolute(warp: Warp, height: int, width: int) -> tuple[tuple[float, float], float]:
    """Return the Gaussian's two standard deviations and the swing, in pixels."""
    if warp.move is None:
        return (height * warp.sigma, width * warp.sigma), height * warp.swing
    return (warp.sigma, warp.sigma), warp.swing


def _affine(unit: NDArray[np.float32], moves: NDArray[np.float64]) -> NDArray[np.float32]:
    """Warp the picture so that three points around its centre move by `moves`."""
    height, width, _ = unit.shape
    reach = min(height, width) // 3
    if reach == 0:
        raise BadInputError(f"elastic_transform of {height} x {width} pixels", expected="both sides at least 3")
    y, x = height // 2, width // 2
    points = np.array([[y + reach, x + reach], [y + reach, x - reach], [y - reach, x - reach]], np.float32)
    matrix = cv2.getAffineTransform(points, points + moves.astype(np.float32))
    warped = cv2.warpAffine(unit, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(warped, np.float32)


def _smooth(noise: NDArray[np.float32], sigma: tuple[float, float]) -> NDArray[np.float32]:
    """Smooth with a Gaussian cut off at REACH, borders mirrored."""
    reaches = [int(REACH * side + 0.5) for side in sigma]
    if max(reaches) <= LONG:
        size = (2 * reaches[1] + 1, 2 * reaches[0] + 1)
        smoothed = cv2.GaussianBlur(noise, size, sigma[1], sigmaY=sigma[0], borderType=cv2.BORDER_REFLECT)
        return np.asarray(smoothed, np.float32)
    gains = [_gains(length, side) for length, side in zip(noise.shape, sigma, strict=True)]
    spectrum: Layer = dctn(noise)
    spectrum *= gains[0][:, None]
    spectrum *= gains[1]
    return np.asarray(idctn(spectrum, overwrite_x=True), np.float32)


@lru_cache(maxsize=64)
def _gains(length: int, sigma: float) -> NDArray[np.float32]:
    """Return the factor by which the Gaussian scales each cosine, the eigenfunctions for mirrored borders."""
    steps = np.arange(1, int(REACH * sigma + 0.5) + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    waves = np.cos(np.pi / length * np.outer(np.arange(length), steps))
    return np.asarray((1 + 2 * waves @ weights) / (1 + 2 * weights.sum()), np.float32)


CORRUPTION = ElasticTransform()
