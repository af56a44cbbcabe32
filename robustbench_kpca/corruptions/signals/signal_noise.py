"""Noise: add independent normal noise to every value, like a sensor; known as jittering.

Um et al. (2017), "Data Augmentation of Wearable Sensor Data for Parkinson's Disease Monitoring", arXiv:1706.00527.
"""

from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.signals import PROFILE, Signal


class SignalNoise:
    """x + sigma n, n ~ N(0, 1); `parameter` is sigma."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = {PROFILE: (0.1, 0.2, 0.4, 0.7, 1.0)}

    def fast(self, signal: Signal, parameter: float, rng: np.random.Generator) -> Signal:
        """Add the noise."""
        return signal + parameter * rng.standard_normal(signal.shape)


CORRUPTION = SignalNoise()
