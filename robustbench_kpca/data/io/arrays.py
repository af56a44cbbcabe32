"""Memory-map a .npy file, safely from several threads."""

from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import UnfitError
from robustbench_kpca._core.files import require_file

# NumPy parses the header with `ast.literal_eval`. In CPython 3.11 two threads that do so at once can raise
# "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
_PARSING = Lock()
_MAGIC = b"\x93NUMPY"


def map_array(path: Path, mode: Literal["r", "r+"] = "r") -> NDArray[Any]:
    """Return the array in a .npy file as a memory map; objects are refused.

    Raises:
        BadInputError: there is no such file, or it is no ordinary one.
        OSError, UnfitError: the file cannot be read, or is no such array.
    """
    require_file(path)
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise UnfitError("no .npy file")
    with _PARSING:
        try:
            array: NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
        except OSError:
            raise
        except Exception:  # noqa: BLE001 (a damaged header can fail anywhere in NumPy's reader)
            raise UnfitError("its head is damaged") from None
    return array
