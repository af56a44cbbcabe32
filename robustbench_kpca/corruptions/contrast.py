"""Contrast: every channel drawn towards its own mean.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


class Contrast:
    """m + c * (x - m), with m the mean of each channel over the image."""

    parameters: ClassVar[dict[str, tuple[float, ...]]] = {
        "imagecorruptions": (0.4, 0.3, 0.2, 0.1, 0.05),
        "cifar_c": (0.75, 0.5, 0.4, 0.3, 0.15),
    }

    def __call__(
        self,
        image: NDArray[np.float64],
        parameter: float,
        rng: np.random.Generator,  # noqa: ARG002 (contrast has no randomness)
    ) -> NDArray[np.float64]:
        """Reduce the contrast to the share `parameter`."""
        mean = image.mean(axis=(0, 1), keepdims=True)
        return np.asarray((image - mean) * parameter + mean)


CORRUPTION = Contrast()
