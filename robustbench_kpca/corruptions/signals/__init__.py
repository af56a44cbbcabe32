"""Corruptions of signals, one file each: float64 (channels, length), in units of the standard deviation.

`CORRUPTION` has `parameters`, of which `signal` holds those of severities 1 to 5, and `fast(signal, parameter, rng)`,
which returns the corrupted signal and leaves the given one. The severities are this project's.
"""

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.registry import Family

SIGNAL_CORRUPTIONS = Family("corruption of signals", __name__, "CORRUPTION", needs=("parameters", "fast"))
PROFILE = "signal"
Signal = NDArray[np.float64]
