"""Defocus blur: convolution with an anti-aliased disk, like a lens out of focus.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
"""

from functools import cache
from typing import ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.corruptions.shared.kernels import Pixels, parameters_of, truncate


@cache
def disk(radius: float, alias_blur: float) -> NDArray[np.float32]:
    """Return the kernel: a disk that sums to 1, smoothed by a Gaussian of `alias_blur` pixels.

    The kernel is 17 x 17 up to radius 8, smoothed over 3 x 3; then (2 radius + 1)^2, smoothed over 5 x 5, as released.
    """
    reach = 8 if radius <= 8 else int(radius)
    axis = np.arange(-reach, reach + 1)
    inside = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(np.float32)
    inside /= inside.sum()
    width = 3 if radius <= 8 else 5
    return np.asarray(cv2.GaussianBlur(inside, (width, width), sigmaX=alias_blur), dtype=np.float32)


class DefocusBlur:
    """x * disk(radius), borders mirrored."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[tuple[float, float], ...]]] = parameters_of(
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    )

    def exact(self, image: Pixels, parameter: tuple[float, float], rng: object = None) -> Pixels:  # noqa: ARG002
        """Blur; `parameter` is (radius, alias_blur) in pixels."""
        return truncate(cv2.filter2D(image / 255.0, -1, disk(*parameter)).clip(0, 1) * 255)

    def fast(self, image: Pixels, parameter: tuple[float, float], rng: object = None) -> Pixels:  # noqa: ARG002
        """Blur without dividing by 255; OpenCV is faster here in double precision than in single."""
        return truncate(cv2.filter2D(image.astype(np.float64), -1, disk(*parameter)))


CORRUPTION = DefocusBlur()
