"""Corruptions of sequences of tokens, one file each: int64 (length,), the words by their number, then padding."""

from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.registry import Family

TOKEN_CORRUPTIONS = Family("corruption of tokens", __name__, "CORRUPTION", needs=("parameters", "fast"))
PROFILE = "tokens"
Words = NDArray[np.int64]


@runtime_checkable
class TokenCorruption(Protocol):
    """A corruption of one sequence; the input is not modified, and padding stays."""

    parameters: ClassVar[dict[str, tuple[Any, ...]]]
    """`tokens` -> the parameters of severities 1 to 5."""

    def fast(self, words: Words, parameter: Any, rng: np.random.Generator) -> Words:
        """Return the corrupted sequence."""
        ...
