"""Gaussian blur: convolution with a Gaussian, with repeated borders.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
"""

from functools import cache
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from robustbench_kpca.corruptions.shared.kernels import LEVELS, Layer, Pixels, parameters_of, settle, truncate

NARROW = 3  # pixels; kernels up to this radius are applied in double precision
REACH = 4  # standard deviations at which the Gaussian is cut off


def smooth_exactly(unit: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Smooth (height, width, channel) in double precision."""
    return np.asarray(gaussian_filter(unit, (sigma, sigma, 0), mode="nearest", truncate=REACH))


def smooth(image: Pixels, sigma: float) -> Layer:
    """Smooth (height, width, 3) without dividing by 255; narrow kernels in double precision, others in single.

    The smallest weights of a narrow kernel change a value by less than the rounding error of single precision, yet they
    can move it across an integer.
    """
    reach = int(REACH * sigma + 0.5)
    density = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    density /= density.sum()
    depth = cv2.CV_64F if reach <= NARROW else cv2.CV_32F
    smoothed: NDArray[Any] = np.asarray(
        cv2.sepFilter2D(image, depth, density, density, borderType=cv2.BORDER_REPLICATE)
    )
    return smoothed


@cache
def flat(sigma: float) -> Pixels:
    """Return the stored level where all neighbours have the same level, for each level."""
    return truncate(smooth_exactly(LEVELS.reshape(1, 1, 256), sigma).clip(0, 1) * 255).ravel()


class GaussianBlur:
    """x * N(0, sigma^2)."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = parameters_of(
        (1.0, 2.0, 3.0, 4.0, 6.0), cifar=(0.4, 0.6, 0.7, 0.8, 1.0)
    )

    def exact(self, image: Pixels, parameter: float, rng: object = None) -> Pixels:  # noqa: ARG002 (draws nothing)
        """Blur; `parameter` is sigma in pixels."""
        return truncate(smooth_exactly(image / 255.0, parameter).clip(0, 1) * 255)

    def fast(self, image: Pixels, parameter: float, rng: object = None) -> Pixels:  # noqa: ARG002
        """Blur in single precision."""
        return settle(smooth(image, parameter), flat(parameter))


CORRUPTION = GaussianBlur()
