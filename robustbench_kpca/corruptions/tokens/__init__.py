"""Corruptions of sequences of tokens, one file each: int64 (length,), the words by their number, then padding.

`CORRUPTION` has `parameters`, of which `tokens` holds those of severities 1 to 5, and `fast(words, parameter, rng)`,
which returns the corrupted sequence and leaves the given one, and padding.
"""

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.registry import Family

TOKEN_CORRUPTIONS = Family("corruption of tokens", __name__, "CORRUPTION", needs=("parameters", "fast"))
PROFILE = "tokens"
Words = NDArray[np.int64]
