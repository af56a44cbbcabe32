"""The corruptions of the installed library `imagecorruptions`, unchanged: `imagecorruptions:fog`.

They are a reference for the native ones. The library draws from numpy's global generator, which is seeded for each
image and restored; numbers from other generators (impulse noise, from scikit-image) are not reproducible. Version 1.1.2
cannot be imported with setuptools 82 or newer, and three of its corruptions fail with current packages: such errors are
reported, not worked around.
"""

# ruff: noqa: NPY002 (the global generator is what the library draws from)

import importlib
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.shared.kernels import Pixels
from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.registry import unknown_name

PREFIX = "imagecorruptions:"


@dataclass(frozen=True)
class LibraryCorruption:
    """One corruption of the library, with the library's parameters; `parameter` is the severity."""

    name: str
    parameters: ClassVar[dict[str, tuple[int, ...]]] = {"imagecorruptions": (1, 2, 3, 4, 5)}

    def exact(self, image: Pixels, parameter: int, rng: np.random.RandomState) -> Pixels:
        """Corrupt with numpy's global generator in the state of `rng`; `rng` advances, the global state is restored."""
        before = np.random.get_state()
        np.random.set_state(rng.get_state())
        try:
            made: Pixels = _library().corrupt(image, severity=parameter, corruption_name=self.name)
        except Exception as error:
            raise EvaluationError(
                f"{PREFIX}{self.name} failed ({type(error).__name__}: {str(error)[:100]})", fix="use the native one"
            ) from error
        finally:
            rng.set_state(np.random.get_state())
            np.random.set_state(before)
        return made

    def fast(self, image: Pixels, parameter: int, rng: np.random.Generator) -> Pixels:
        """Corrupt as in `exact` mode, with a seed drawn from `rng`."""
        return self.exact(image, parameter, np.random.RandomState(int(rng.integers(2**32))))


def library_corruption(name: str) -> LibraryCorruption:
    """Return the library's corruption called `imagecorruptions:NAME`.

    Raises:
        BadInputError: the library cannot be imported or has no such corruption.

    """
    known = _library().get_corruption_names("all")
    wanted = name.removeprefix(PREFIX)
    if wanted not in known:
        raise unknown_name("corruption of imagecorruptions", wanted, known)
    return LibraryCorruption(wanted)


@cache
def _library() -> ModuleType:
    try:
        return importlib.import_module("imagecorruptions")
    except Exception as error:  # noqa: BLE001 (the library may raise anything)
        raise BadInputError(
            f"imagecorruptions cannot be imported ({type(error).__name__}: {error})",
            fix="pip install 'setuptools<82' scikit-image; pip install --no-deps imagecorruptions==1.1.2",
        ) from None
