"""The corruptions of the installed library `imagecorruptions` 1.1.2: `imagecorruptions:fog`.

They are a reference for the native ones. The library draws from numpy's global generator, which is seeded for each
image and restored. Current packages broke it in five places, which are mended at import, in a copy of the library's
modules under another name: neither the library's files nor any other package is changed.

- `pkg_resources` (gone from setuptools 82): a stand-in that finds the library's pictures of frost.
- `scipy.ndimage.interpolation` (deprecated): imported without its warning.
- `np.float_` (gone from NumPy 2; fog): `np.float64`.
- `gaussian(multichannel=True)` (gone from scikit-image 0.20; glass_blur, gaussian_blur): `channel_axis=-1`.
- `random_noise` of scikit-image (impulse_noise) no longer draws from numpy's global generator: it is given a generator
  that the global one has seeded, so that a seed gives one picture; but not the picture of an older scikit-image.
"""

# ruff: noqa: NPY002 (the global generator is what the library draws from)

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError, EvaluationError, install_extra, reason_of
from robustbench_kpca._core.registry import unknown_name

Pixels = NDArray[np.uint8]
PREFIX = "imagecorruptions:"
PROFILE = "imagecorruptions"
OTHER_DRAWS = ("impulse_noise",)
"""Corruptions whose numbers are not those of numpy's global generator: a seed gives another picture than ours."""
_COPY = "_imagecorruptions_of_robustbench_kpca"


@dataclass(frozen=True)
class LibraryCorruption:
    """One corruption of the library, with the library's parameters; `parameter` is the severity."""

    version: ClassVar[int] = 1
    name: str
    parameters: ClassVar[dict[str, tuple[int, ...]]] = {PROFILE: (1, 2, 3, 4, 5)}

    def exact(self, image: Pixels, parameter: int, rng: np.random.RandomState) -> Pixels:
        """Corrupt with numpy's global generator in the state of `rng`; `rng` advances, the global state is restored."""
        before = np.random.get_state()
        np.random.set_state(rng.get_state())
        try:
            with np.errstate(invalid="ignore"):  # spatter without a drop divides 0 by 0
                corrupted: Pixels = _library().corrupt(image, severity=parameter, corruption_name=self.name)
        except Exception as error:
            raise EvaluationError(
                f"{PREFIX}{self.name} failed ({reason_of(error)})", fix="use the native one"
            ) from error
        finally:
            rng.set_state(np.random.get_state())
            np.random.set_state(before)
        return corrupted

    def fast(self, image: Pixels, parameter: int, rng: np.random.Generator) -> Pixels:
        """Corrupt as in `exact` mode, with a seed drawn from `rng`."""
        return self.exact(image, parameter, np.random.RandomState(int(rng.integers(2**32))))


def library_corruption(name: str) -> LibraryCorruption:
    """Return the library's corruption called `imagecorruptions:NAME`.

    Raises:
        BadInputError: the library cannot be imported or has no such corruption.
    """
    names = _library().get_corruption_names("all")
    wanted = name.removeprefix(PREFIX)
    if wanted not in names:
        raise unknown_name("corruption of imagecorruptions", wanted, names)
    return LibraryCorruption(wanted)


def frost_pictures() -> Path:
    """Return the folder of the original pictures of frost, which come with the library."""
    return Path(str(_library().__file__)).parent / "frost"


@cache
def _library() -> ModuleType:
    try:
        return _mended_copy()
    except Exception as error:  # noqa: BLE001 (the library may raise anything)
        raise BadInputError(
            f"imagecorruptions cannot be imported ({reason_of(error)})",
            fix=install_extra("reference"),
        ) from None


def _mended_copy() -> ModuleType:
    """Import the installed files once more, under another name, and replace what current packages lack."""
    installed = importlib.util.find_spec("imagecorruptions")
    if installed is None or installed.origin is None:
        raise ModuleNotFoundError("No module named 'imagecorruptions'")
    folder = [str(Path(installed.origin).parent)]
    spec = importlib.util.spec_from_file_location(_COPY, installed.origin, submodule_search_locations=folder)
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[_COPY] = importlib.util.module_from_spec(spec)
    with _stand_ins(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(package)
    inner: Any = sys.modules[f"{_COPY}.corruptions"]
    inner.np, inner.sk, inner.gaussian = _Numpy("numpy"), _Skimage("skimage"), _gaussian
    return package


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Put a stand-in where `pkg_resources` would be, for the import of the library only."""
    before, stand_in = sys.modules.get("pkg_resources"), ModuleType("pkg_resources")
    stand_in.resource_filename = _resource_filename  # type: ignore[attr-defined]
    sys.modules["pkg_resources"] = stand_in
    try:
        yield
    finally:
        del sys.modules["pkg_resources"]
        if before is not None:
            sys.modules["pkg_resources"] = before


def _resource_filename(module: str, name: str) -> str:
    return str(Path(str(sys.modules[module].__file__)).parent / name)


class _Numpy(ModuleType):
    """Numpy with the name that the library's fog needs."""

    float_ = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class _Skimage(ModuleType):
    """scikit-image, whose random noise is seeded by numpy's global generator; `util` is this same object."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("skimage"), name)

    @property
    def util(self) -> "_Skimage":
        return self

    @staticmethod
    def random_noise(image: Any, **options: Any) -> Any:
        random_noise = importlib.import_module("skimage.util").random_noise
        return random_noise(image, rng=np.random.default_rng(np.random.randint(2**32, dtype=np.uint64)), **options)


def _gaussian(image: Any, *positional: Any, multichannel: bool = False, **options: Any) -> Any:
    gaussian = importlib.import_module("skimage.filters").gaussian
    return gaussian(image, *positional, **({"channel_axis": -1} if multichannel else {}), **options)
