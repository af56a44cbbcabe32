"""Time warp: time runs faster in some parts of the signal and slower in others; beginning and end stay.

Um et al. (2017), "Data Augmentation of Wearable Sensor Data for Parkinson's Disease Monitoring", arXiv:1706.00527,
describe the idea; the curve is this project's.
"""

from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.signals import PROFILE, Signal

WAVES = 3


class TimeWarp:
    """Evaluate the signal at w(u) in place of u, from 0 to 1, by linear interpolation.

        w(u) = u + sum_{k=1}^{3} c_k sin(pi k u) / (pi k),   c_k uniform in [-s/3, s/3].

    w' = 1 + sum c_k cos(pi k u) lies in [1 - s, 1 + s], so that time never runs backwards; `parameter` is s < 1.
    """

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = {PROFILE: (0.1, 0.2, 0.4, 0.6, 0.9)}

    def fast(self, signal: Signal, parameter: float, rng: np.random.Generator) -> Signal:
        """Warp all channels alike."""
        u = np.linspace(0, 1, signal.shape[1])
        k = np.arange(1, WAVES + 1)
        w = u + np.sin(np.pi * np.outer(u, k)) @ (rng.uniform(-parameter, parameter, WAVES) / WAVES / (np.pi * k))
        return np.stack([np.interp(w, u, channel) for channel in signal])


CORRUPTION = TimeWarp()
