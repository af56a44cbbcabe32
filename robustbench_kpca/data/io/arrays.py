"""Memory-map a .npy file, safely from several threads."""

from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# NumPy parses the header with `ast.literal_eval`. In CPython 3.11 two threads that do so at once can raise
# "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
_PARSING = Lock()


def map_array(path: Path, mode: Literal["r", "r+"] = "r") -> NDArray[Any]:
    """Return the array in a .npy file as a memory map; objects are refused.

    Raises:
        OSError, ValueError, EOFError: the file cannot be read, or is no such array.

    """
    with _PARSING:
        array: NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
    return array
