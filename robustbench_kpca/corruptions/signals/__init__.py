"""Corruptions of signals, one file each: float64 (channels, length), in units of the standard deviation."""

from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.registry import Family

SIGNAL_CORRUPTIONS = Family("corruption of signals", __name__, "CORRUPTION", needs=("parameters", "fast"))
PROFILE = "signal"
Signal = NDArray[np.float64]


@runtime_checkable
class SignalCorruption(Protocol):
    """A corruption of one signal; the input is not modified. The severities are this project's."""

    parameters: ClassVar[dict[str, tuple[Any, ...]]]
    """`signal` -> the parameters of severities 1 to 5."""

    def fast(self, signal: Signal, parameter: Any, rng: np.random.Generator) -> Signal:
        """Return the corrupted signal."""
        ...
