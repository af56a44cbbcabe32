"""Gaussian noise: add independent normal noise to every value, like a sensor in low light.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
"""

from typing import ClassVar

import cv2
import numpy as np

from robustbench_kpca.corruptions.shared.kernels import LEVELS, Pixels, normal, parameters_of, truncate


class GaussianNoise:
    """x + sigma * n, n ~ N(0, 1)."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = parameters_of(
        (0.08, 0.12, 0.18, 0.26, 0.38), cifar=(0.04, 0.06, 0.08, 0.09, 0.10)
    )

    def exact(self, image: Pixels, parameter: float, rng: np.random.RandomState) -> Pixels:
        """Add the noise; `parameter` is sigma."""
        noisy = rng.normal(size=image.shape, scale=parameter)
        noisy += LEVELS.take(image)
        return truncate(noisy.clip(0, 1) * 255)

    def fast(self, image: Pixels, parameter: float, rng: np.random.Generator) -> Pixels:
        """Add the noise in single precision; its mean of -1/2 makes OpenCV's rounding a truncation."""
        noise = normal(image.shape, -0.5, 255 * parameter, rng)
        return np.asarray(cv2.add(image, noise, dtype=cv2.CV_8U), np.uint8)


CORRUPTION = GaussianNoise()
