"""Contrast: scale every channel towards its mean over the image.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
"""

from typing import ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.corruptions.shared.kernels import Pixels, parameters_of, truncate

UNIT = np.arange(256).reshape(1, 256, 1) / 255.0
ROUNDING = 1e-6  # levels; far above the rounding error of the mean


class Contrast:
    """m + c * (x - m), with m the mean of each channel over the image."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = parameters_of(
        (0.4, 0.3, 0.2, 0.1, 0.05), cifar=(0.75, 0.5, 0.4, 0.3, 0.15)
    )

    def exact(self, image: Pixels, parameter: float, rng: object = None) -> Pixels:  # noqa: ARG002 (draws nothing)
        """Reduce the contrast to the fraction `parameter`, with a table of 256 levels per channel.

        The mean is summed in integers; if its rounding could change a level, it is summed again as in the reference.
        """
        table = _table(np.array(cv2.mean(image)[:3]) / 255.0, parameter)
        if np.abs(table - np.rint(table)).min() < ROUNDING:
            table = _table((image / 255.0).mean(axis=(0, 1)), parameter)
        return np.asarray(cv2.LUT(image, truncate(table)), np.uint8)

    fast = exact


def _table(mean: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Return the new value of every level, (1, 256, 3), given each channel's mean in [0, 1]."""
    return np.clip((UNIT - mean) * share + mean, 0, 1) * 255


CORRUPTION = Contrast()
