"""Speckle noise: add normal noise proportional to each value.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
"""

from typing import ClassVar

import cv2
import numpy as np

from robustbench_kpca.corruptions.shared.kernels import Pixels, normal, parameters_of, truncate


class SpeckleNoise:
    """x + x * sigma * n, n ~ N(0, 1)."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = parameters_of(
        (0.15, 0.2, 0.35, 0.45, 0.6), cifar=(0.06, 0.1, 0.12, 0.16, 0.2)
    )

    def exact(self, image: Pixels, parameter: float, rng: np.random.RandomState) -> Pixels:
        """Add the noise; `parameter` is sigma."""
        unit = image / 255.0
        noisy = unit + unit * rng.normal(size=image.shape, scale=parameter)
        return truncate(noisy.clip(0, 1) * 255)

    def fast(self, image: Pixels, parameter: float, rng: np.random.Generator) -> Pixels:
        """Add the noise in single precision."""
        noisy = normal(image.shape, 1, parameter, rng)
        return truncate(cv2.multiply(image, noisy, dst=noisy, dtype=cv2.CV_32F))


CORRUPTION = SpeckleNoise()
