"""List image files, and decode each of them to 8-bit RGB in the same way."""

import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from robustbench_kpca.errors import BadInputError

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}
UNREADABLE = (
    OSError, UnidentifiedImageError, SyntaxError, ValueError, EOFError, IndexError, struct.error,
    Pillow.DecompressionBombError,
)  # fmt: skip
"""What Pillow raises for a file that is no image, or only the beginning of one."""


def read_rgb(path: Path) -> Pillow.Image:
    """Decode a file: grey is repeated, a palette resolved, CMYK converted.

    Two things are as in torchvision and timm, so that published numbers can be met: an EXIF orientation is ignored, and
    alpha is dropped, which shows the colours stored under transparent pixels. Grey of 16 bits is scaled by 257, and
    rounded (Pillow alone would cut it off at 255); colour of 16 bits keeps its upper byte.

    Raises:
        BadInputError: the file is missing, damaged, cut short or no image.

    """
    try:
        with Pillow.open(path) as file:
            return _to_rgb(file)
    except UNREADABLE as error:
        raise BadInputError(f"image {path} cannot be read ({error})", fix="replace or remove it") from None


def image_size(path: Path) -> tuple[int, int]:
    """Read width and height from a file's header.

    Raises:
        BadInputError: the file is missing or no image.

    """
    try:
        with Pillow.open(path) as file:
            return file.size
    except UNREADABLE as error:
        raise BadInputError(f"image {path} cannot be read ({error})", fix="replace or remove it") from None


def _to_rgb(image: Pillow.Image) -> Pillow.Image:
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Pillow.fromarray(((levels + 128) // 257).astype(np.uint8))
    elif "transparency" in image.info:  # else Pillow warns of what is meant to happen: the loss of alpha
        image = image.convert("RGBA")
    return image.convert("RGB")


def unreadable(paths: Sequence[Path]) -> list[int]:
    """Decode every file, in parallel threads; return the positions of those that cannot be read."""

    def fails(path: Path) -> bool:
        try:
            read_rgb(path)
        except BadInputError:
            return True
        return False

    with ThreadPoolExecutor() as pool:
        return [position for position, bad in enumerate(pool.map(fails, paths)) if bad]


def image_files(folder: Path) -> list[str]:
    """Relative posix paths of all images below `folder`, sorted; what is hidden or has another suffix is no image."""
    found = [path for path in _walk(folder) if Path(path).suffix.lower() in SUFFIXES]
    return sorted(found, key=lambda path: path.split("/"))


def sub_folders(folder: Path) -> list[str]:
    """Names of the folders in `folder`, sorted as text; hidden ones are left out."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise _closed(error) from None


def _walk(folder: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise _closed(error)

    for top, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        start = Path(top).relative_to(folder).as_posix()
        prefix = "" if start == "." else f"{start}/"
        yield from (prefix + name for name in files if not name.startswith("."))


def _closed(error: OSError) -> BadInputError:
    return BadInputError(f"folder {error.filename} cannot be read ({error.strerror})", fix="check its permissions")
