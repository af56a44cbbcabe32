"""Motion blur: average the image along a line of random direction, like a moving camera.

Hendrycks & Dietterich (2019), arXiv:1903.12261, with ImageMagick; Michaelis et al. (2019), arXiv:1907.07484, in numpy,
which is used here. With the same angle, Hendrycks' images differ from these by 1 level in 0.2 % of values, because
ImageMagick rounds its sums differently (measured once, with 6.9; not tested): `imagenet_c` does not reproduce that.
"""

from functools import cache
from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions._motion import blur, blur_exactly, line
from robustbench_kpca.corruptions.shared.kernels import Pixels, parameters_of, settle, truncate

STEEPEST = 45.0  # largest angle, degrees
NARROW = 3.0  # pixels; smaller sigmas are applied in double precision


@cache
def flat(weights: tuple[float, ...]) -> Pixels:
    """Return the stored level where all neighbours have the same level, for each level."""
    levels = np.zeros(256)
    for weight in weights:
        levels += weight * np.arange(256)
    return truncate(levels)


class MotionBlur:
    """sum_i w_i x(p + i * (cos a, sin a)), a ~ U(-45, 45) degrees, w_i ~ exp(-i^2 / (2 sigma^2))."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[tuple[int, float], ...]]] = parameters_of(
        ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0)),
        cifar=((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
    )

    def exact(self, image: Pixels, parameter: tuple[int, float], rng: np.random.RandomState) -> Pixels:
        """Blur; `parameter` is (radius, sigma) in pixels, with 2 radius + 1 taps."""
        taps = line(*parameter, rng.uniform(-STEEPEST, STEEPEST), *image.shape[:2])
        return truncate(blur_exactly(image, taps))

    def fast(self, image: Pixels, parameter: tuple[int, float], rng: np.random.Generator) -> Pixels:
        """Blur in single precision, except for narrow kernels, whose small weights would be lost."""
        taps = line(*parameter, rng.uniform(-STEEPEST, STEEPEST), *image.shape[:2])
        if parameter[1] < NARROW:
            return truncate(blur_exactly(image, taps))
        return settle(blur(image, taps), flat(tuple(float(tap.weight) for tap in taps)))


CORRUPTION = MotionBlur()
