"""Dropout: a share of the places is lost in all channels, like a bad connection; lost values are the mean, 0."""

from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.signals import PROFILE, Signal


class SignalDropout:
    """Places are chosen without repetition; `parameter` is their share, and at least one is lost."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = {PROFILE: (0.05, 0.1, 0.2, 0.35, 0.5)}

    def fast(self, signal: Signal, parameter: float, rng: np.random.Generator) -> Signal:
        """Set the lost places to 0."""
        length = signal.shape[1]
        thinned = signal.copy()
        thinned[:, rng.choice(length, max(1, round(parameter * length)), replace=False)] = 0
        return thinned


CORRUPTION = SignalDropout()
