"""Shot noise: replace every value by a Poisson count of photons; bright values vary more than dark ones.

Hendrycks & Dietterich (2019), arXiv:1903.12261; parameters of the released `create_c` scripts (224 px and CIFAR).
"""

from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy.special import pdtr

from robustbench_kpca.corruptions.shared.kernels import LEVELS, Pixels, parameters_of, truncate

DRAWS = 65536


@lru_cache(maxsize=5)
def quantiles(photons: float) -> Pixels:
    """Return the stored levels of 2^16 equally likely draws, a row per clean level; probabilities exact to 2^-17."""
    counts = np.arange(np.ceil(photons + 12 * np.sqrt(photons) + 12))  # 12 standard deviations above the mean
    stored = truncate((counts / photons).clip(0, 1) * 255)
    table = np.empty((256, DRAWS), np.uint8)
    for row, level in zip(table, LEVELS, strict=True):
        ends = np.rint(DRAWS * pdtr(counts, level * photons)).astype(np.int64)
        ends[-1] = DRAWS
        row[:] = np.repeat(stored, np.diff(ends, prepend=0))
    return table


class ShotNoise:
    """k / c, k ~ Poisson(c * x)."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = parameters_of(
        (60.0, 25.0, 12.0, 5.0, 3.0), cifar=(500.0, 250.0, 100.0, 75.0, 50.0)
    )

    def exact(self, image: Pixels, parameter: float, rng: np.random.RandomState) -> Pixels:
        """Draw photon counts; `parameter` is c, the photons of the brightest value."""
        counts = rng.poisson((LEVELS * parameter).take(image))
        levels = truncate((np.arange(counts.max() + 1) / parameter).clip(0, 1) * 255)
        return levels.take(counts)

    def fast(self, image: Pixels, parameter: float, rng: np.random.Generator) -> Pixels:
        """Draw photon counts by table, with one 16-bit draw for each value."""
        place = image.astype(np.intp)
        place *= DRAWS
        place += rng.integers(0, DRAWS, image.shape, dtype=np.uint16)
        return quantiles(parameter).ravel().take(place, mode="clip")  # all lie inside; this mode skips the check


CORRUPTION = ShotNoise()
