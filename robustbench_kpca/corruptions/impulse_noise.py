"""Impulse noise: set random values to 0 or 255, like a faulty sensor or transmission.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR). The
reference calls scikit-image's `random_noise(mode="s&p")` without a seed: `exact` draws in scikit-image's order from its
own generator, so the two agree in distribution only.
"""

from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.shared.kernels import Pixels, parameters_of


class ImpulseNoise:
    """Each value, with probability p, is replaced by 0 or 255, both equally likely."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = parameters_of(
        (0.03, 0.06, 0.09, 0.17, 0.27), cifar=(0.01, 0.02, 0.03, 0.05, 0.07)
    )

    def exact(self, image: Pixels, parameter: float, rng: np.random.RandomState) -> Pixels:
        """Replace values; `parameter` is p."""
        flipped = rng.random_sample(image.shape) <= parameter
        salted = rng.random_sample(image.shape) <= 0.5
        return np.where(flipped, salted * np.uint8(255), image)

    def fast(self, image: Pixels, parameter: float, rng: np.random.Generator) -> Pixels:
        """Replace values, with one 16-bit draw each: p is exact to 2^-16."""
        draw = rng.integers(0, 65536, image.shape, dtype=np.uint16)
        pepper, either = round(parameter * 32768), round(parameter * 65536)
        return (image | -(draw < either).view(np.uint8)) & -(draw >= pepper).view(np.uint8)


CORRUPTION = ImpulseNoise()
