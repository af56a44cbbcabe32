"""Drift: the baseline of each channel wanders, like a sensor that warms up."""

from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.signals import PROFILE, Signal


class BaselineDrift:
    """x + s b / max |b|, with b a random walk of normal steps in each channel; `parameter` is s."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = {PROFILE: (0.25, 0.5, 1.0, 1.5, 2.0)}

    def fast(self, signal: Signal, parameter: float, rng: np.random.Generator) -> Signal:
        """Add the walk."""
        walk = rng.standard_normal(signal.shape).cumsum(1)
        largest = np.abs(walk).max(1, keepdims=True)
        moved: Signal = signal + parameter * walk / np.maximum(largest, np.finfo(float).tiny)
        return moved


CORRUPTION = BaselineDrift()
