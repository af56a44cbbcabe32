"""List image files, and decode them to 8-bit RGB."""

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
"""Exceptions of Pillow for files that are not images or are incomplete."""


def read_rgb(path: Path) -> Pillow.Image:
    """Decode a file to RGB: grey is repeated, palettes are resolved, CMYK is converted.

    As in torchvision and timm, so that published numbers can be reproduced, the EXIF orientation is ignored and alpha
    is dropped, which shows the colours stored under transparent pixels. 16-bit grey is divided by 257 and rounded
    (Pillow would clip it at 255); 16-bit colour keeps its upper byte.

    Raises:
        BadInputError: the file is missing, damaged, incomplete or not an image.

    """
    try:
        with Pillow.open(path) as file:
            return _to_rgb(file)
    except UNREADABLE as error:
        raise BadInputError(f"image {path} cannot be read ({error})", fix="replace or remove it") from None


def image_size(path: Path) -> tuple[int, int]:
    """Read width and height in pixels from the header of a file.

    Raises:
        BadInputError: the file is missing or not an image.

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
    elif "transparency" in image.info:  # without this, Pillow warns about the loss of alpha, which is intended
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
    """Return relative posix paths of all images below `folder`, sorted; hidden files and other suffixes are ignored."""
    found = [path for path in _walk(folder) if Path(path).suffix.lower() in SUFFIXES]
    return sorted(found, key=lambda path: path.split("/"))


def no_images(folder: Path) -> str:
    """Return in words why `image_files` finds nothing below a folder: no files, or none with a known suffix."""
    others = sorted(_walk(folder))
    if not others:
        return "no images"
    return f"no file that ends in {', '.join(sorted(SUFFIXES))}, but {len(others)} others, such as '{others[0]}'"


def sub_folders(folder: Path) -> list[str]:
    """Return the names of the folders in `folder`, sorted as text, without hidden ones."""
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
