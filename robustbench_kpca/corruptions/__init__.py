"""The common corruptions, one file each (Hendrycks & Dietterich, 2019). The TOML files in `/corruptions` are protocols.

The corruptions of signals, of tokens and of the words of a running text are in the sub-folders.

`corrupt` is seeded per image, so a corrupted image does not depend on order, batch or worker.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from robustbench_kpca._core import address
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca._core.registry import Family, unknown_name
from robustbench_kpca.corruptions._library import OTHER_DRAWS as OTHER_DRAWS
from robustbench_kpca.corruptions._library import PREFIX as PREFIX
from robustbench_kpca.corruptions._library import PROFILE as PROFILE
from robustbench_kpca.corruptions._library import frost_pictures as frost_pictures
from robustbench_kpca.corruptions._library import library_corruption
from robustbench_kpca.corruptions.signals import SIGNAL_CORRUPTIONS
from robustbench_kpca.corruptions.tokens import TOKEN_CORRUPTIONS
from robustbench_kpca.corruptions.words import WORD_CORRUPTIONS
from robustbench_kpca.protocols.grid import check_severity

CORRUPTIONS = Family("corruption", __name__, "CORRUPTION", needs=("parameters", "fast"))
ALL = (CORRUPTIONS, SIGNAL_CORRUPTIONS, TOKEN_CORRUPTIONS, WORD_CORRUPTIONS)
"""Families for images, signals, tokens and words; no two have a name in common."""
PROFILES = ("imagenet_c", "imagecorruptions", "cifar_c")
Pixels = NDArray[np.uint8]
Mode = Literal["fast", "exact"]


@dataclass(frozen=True)
class Cell:
    """One corruption at one severity, with the settings of `corrupt`."""

    corruption: str
    severity: int
    profile: str
    mode: Mode
    seed: int
    frost: str = "generated"


MOST_SIDE = 2**14
"""Pixels: fog needs a square map of the longer side, 1 GiB here; OpenCV and JPEG files end soon after."""


def corrupt_one(image: NDArray[Any], cell: Cell, sample: str) -> NDArray[Any]:
    """Corrupt one (height, width, 3) image, seeded by its id `sample`.

    A native corruption and the library's of the same name get the same seed. Signals and tokens have the mode `fast`
    only.

    Raises:
        BadInputError: a side of an image is longer than `MOST_SIDE`, or the corruption cannot be made of it.
    """
    if image.dtype == np.uint8 and max(image.shape) > MOST_SIDE:
        height, width = image.shape[:2]
        raise BadInputError(
            f"an image of {width} x {height} pixels",
            expected=f"at most {MOST_SIDE} on each side",
            fix="make it smaller",
        )
    member = corruption_for(cell.corruption)
    corruption: Any = member.with_pictures(cell.frost) if cell.corruption == "frost" else member
    parameter = corruption.parameters[cell.profile][cell.severity - 1]
    key = sample_key(cell.seed, f"{cell.corruption.removeprefix(PREFIX)}/{cell.severity}", sample)
    if cell.mode == "fast":
        corrupted: NDArray[Any] = corruption.fast(image, parameter, generator(key))
        return corrupted
    if not hasattr(corruption, "exact"):
        raise BadInputError(f"corruption '{cell.corruption}' has no mode 'exact'", fix="set mode = 'fast'")
    _EXACT.stream.seed([key & 0xFFFFFFFF, key >> 32])
    exact: NDArray[Any] = corruption.exact(image, parameter, _EXACT.stream)
    return exact


class _Exact(threading.local):
    """The generator of the mode `exact`, seeded for each image: to make one takes longer than to pixelate."""

    def __init__(self) -> None:
        self.stream = RandomState(0)


_EXACT = _Exact()


def corruption_for(name: str) -> Any:
    """Return the corruption called `name`, of any form of data; `imagecorruptions:NAME`: the library's."""
    return library_corruption(name) if name.startswith(PREFIX) else family_of(name).get(name)


def family_of(name: str) -> Family:
    """Return the family of corruptions that has this name; for an address, that of images, or of words by its methods.

    Raises:
        UnknownNameError: there is none; the message suggests the closest name.
    """
    if address.is_address(name):
        of_words = hasattr(address.load(name, CORRUPTIONS.kind).member, "replaced")
        return WORD_CORRUPTIONS if of_words else CORRUPTIONS
    family = next((family for family in ALL if name in family), None)
    if family is None:
        raise unknown_name("corruption", name, [name for family in ALL for name in family.names()])
    return family


def require_corruption(name: str) -> None:
    """Refuse the name of no corruption; the code of an address is not run."""
    if not name.startswith(PREFIX):
        (CORRUPTIONS if address.is_address(name) else family_of(name)).require(name)


def require_profile(name: str, profile: str) -> None:
    """Refuse an unknown corruption, or a profile that it does not have."""
    profiles = sorted(corruption_for(name).parameters)
    if profile not in profiles:
        raise BadInputError(f"corruption '{name}' has no profile '{profile}'", fix=f"known: {', '.join(profiles)}")


def require_of_images(name: str, profile: str) -> None:
    """Refuse an unknown corruption, one of other data than images, or a profile that it does not have."""
    family = next((family for family in ALL[1:] if name in family), None)
    if family is not None:
        raise BadInputError(
            f"'{name}' is a {family.kind}",
            expected="a corruption of images",
            fix="for other data, see the protocols: rbk list protocols",
        )
    require_profile(name, profile)


def corrupt(
    images: Pixels,
    name: str,
    severity: int,
    seed: int = 0,
    ids: Sequence[str] | None = None,
    mode: Mode = "fast",
    profile: str = "imagecorruptions",
    frost: str = "generated",
) -> Pixels:
    """Corrupt a batch of images.

    Source: Hendrycks & Dietterich (2019), "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", arXiv:1903.12261.

    Args:
        images: uint8, shape (batch, height, width, 3), RGB.
        name: one of `rbk list corruptions`, or `imagecorruptions:NAME` for the installed library's.
        severity: 1 (mild) to 5.
        seed: determines all random numbers, together with name, severity and the image's id.
        ids: one id per image, which selects its random stream; by default its position: "0", "1", ...
        mode: `fast`, or `exact`: identical bit for bit to `imagecorruptions` 1.1.2 with the same random numbers.
        profile: the parameters: `imagecorruptions` (Michaelis et al., any size), `imagenet_c` (Hendrycks' script for
            224 px) or `cifar_c` (his script for 32 px).
        frost: the images of frost that the corruption `frost` uses: `generated` (this project's own, in mode `fast`
            only), or the folder of the original photographs, frost1.png to frost5.jpg.

    Returns:
        uint8, the same shape.

    Raises:
        BadInputError: wrong dtype or shape, unknown name, mode or profile, severity outside 1 to 5, images too small
            or too large for the corruption, frost photographs missing or not the originals.

    Examples:
        >>> import numpy as np
        >>> from robustbench_kpca import corrupt
        >>> grey = np.full((1, 32, 32, 3), 128, np.uint8)
        >>> corrupt(grey, "brightness", severity=3).mean() > grey.mean()
        np.True_
    """
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or 0 in images.shape:
        raise BadInputError(
            f"images of dtype {images.dtype} and shape {images.shape}",
            expected="uint8 of shape (batch, height, width, 3), none of them 0",
        )
    check_severity(severity)
    require_of_images(name, profile)
    if mode not in ("fast", "exact"):
        raise BadInputError(f"mode '{mode}'", expected="fast or exact")
    ids = [str(index) for index in range(len(images))] if ids is None else ids
    if len(ids) != len(images):
        raise BadInputError(f"{len(ids)} ids for {len(images)} images", expected="one id per image")
    cell = Cell(name, severity, profile, mode, seed=seed, frost=frost)
    return np.stack([corrupt_one(image, cell, sample) for image, sample in zip(images, ids, strict=True)])
