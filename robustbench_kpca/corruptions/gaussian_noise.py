"""Gaussian noise: independent normal noise on every value, as of a sensor in low light.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


class GaussianNoise:
    """x + sigma * n, n ~ N(0, 1)."""

    parameters: ClassVar[dict[str, tuple[float, ...]]] = {
        "imagecorruptions": (0.08, 0.12, 0.18, 0.26, 0.38),
        "cifar_c": (0.04, 0.06, 0.08, 0.09, 0.10),
    }

    def __call__(self, image: NDArray[np.float64], parameter: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Add the noise; `parameter` is sigma."""
        return image + rng.normal(scale=parameter, size=image.shape)


CORRUPTION = GaussianNoise()
