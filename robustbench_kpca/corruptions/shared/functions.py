"""Corruptions made of a function."""

from collections.abc import Callable
from typing import Any

import numpy as np

from robustbench_kpca.corruptions import PROFILES
from robustbench_kpca.corruptions.shared.kernels import Pixels

SEVERITIES = (1, 2, 3, 4, 5)
Corrupt = Callable[[Pixels, int, np.random.Generator], Any]


class FunctionCorruption:
    """A corruption of images, of every profile, in mode `fast` only; its parameter is the severity."""

    def __init__(self, function: Corrupt) -> None:
        self.__wrapped__, self.__doc__ = function, function.__doc__  # its code is that of the function
        self.parameters = dict.fromkeys(PROFILES, SEVERITIES)

    def fast(self, image: Pixels, parameter: int, rng: np.random.Generator) -> Any:
        """Return the corrupted image."""
        return self.__wrapped__(image, parameter, rng)


def corruption(function: Corrupt) -> FunctionCorruption:
    """Make a corruption of a function `f(image, severity, rng) -> image`.

    Images are uint8, (height, width, 3); the one given is not to be modified. `severity` is 1 to 5. All random numbers
    come from `rng`, a numpy generator that is seeded for every image.

    Examples:
        >>> import numpy as np
        >>> from robustbench_kpca import corruption
        >>> @corruption
        ... def darker(image, severity, rng):
        ...     return image // (1 + severity)
        >>> darker.fast(np.full((2, 2, 3), 60, np.uint8), 2, np.random.default_rng(0)).max()
        np.uint8(20)
    """
    return FunctionCorruption(function)
