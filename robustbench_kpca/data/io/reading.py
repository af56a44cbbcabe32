"""List image files, and decode them to 8-bit RGB; map arrays of them into memory."""

import os
import struct
import warnings
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from threading import Lock
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of
from robustbench_kpca._core.files import require_file

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}
FORMATS = ("BMP", "JPEG", "PNG", "WEBP")
"""The decoders that a file may choose by its content, whatever its name. Pillow has forty others: more to attack."""
PIXELS = "RBK_MAX_PIXELS"
UNREADABLE = (
    OSError, UnidentifiedImageError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error,
)  # fmt: skip
"""Exceptions of Pillow for files that are not images or are incomplete."""
_TOO_MANY = (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning)
_OURS = Pillow.MAX_IMAGE_PIXELS or 89_478_485
warnings.filterwarnings("error", category=Pillow.DecompressionBombWarning)  # Pillow's first limit is the limit
_SIGNATURE = 8  # bytes before the first part of a PNG file
_CHUNK = 2**20
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of interlaced images (Adam7): first column, first row, and the steps between columns and rows."""


def pixel_limit() -> int:
    """Return the most pixels that an image may have: RBK_MAX_PIXELS, or Pillow's 89,478,485.

    Raises:
        BadInputError: RBK_MAX_PIXELS is no positive number.
    """
    text = os.environ.get(PIXELS, "")
    if not text:
        return _OURS
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:20]) < 2**40):
        raise BadInputError(f"{PIXELS} = {text[:40]!r}", expected="a number of pixels, such as 200000000")
    if int(text) > _OURS:
        Pillow.MAX_IMAGE_PIXELS = int(text)
    return int(text)


@contextmanager
def open_image(source: Path | BufferedIOBase, name: str | None = None, what: str = "image") -> Iterator[Pillow.Image]:
    """Open an image for decoding, in the `with` statement, after a look at what kind of file it is and at its size.

    Args:
        source: an ordinary file, or one that is open.
        name: what it is called in errors; by default `source`.
        what: it is.

    Raises:
        BadInputError: the file is missing, no ordinary file, damaged, incomplete, of another format than `FORMATS`, or
            of more pixels than `pixel_limit`; also where the decoder fails in the body of the `with` statement.
    """
    met, limit = f"{what} {name or source}", pixel_limit()
    if isinstance(source, Path):
        require_file(source, what)
    try:
        with Pillow.open(cast("Path | IO[bytes]", source), formats=FORMATS) as image:
            if image.width * image.height > limit:
                raise Pillow.DecompressionBombError
            yield image
    except _TOO_MANY:
        raise BadInputError(
            f"{met} has more than {limit:,} pixels", fix=f"shrink or remove it, or set {PIXELS}"
        ) from None
    except UNREADABLE as error:
        why = "no BMP, JPEG, PNG or WebP" if isinstance(error, UnidentifiedImageError) else error
        raise BadInputError(f"{met} cannot be read ({why})", fix="replace or remove it") from None


def read_rgb(path: Path) -> Pillow.Image:
    """Decode a file to RGB: grey is repeated, palettes are resolved, CMYK is converted; errors as in `open_image`.

    As in torchvision and timm, so that published numbers can be reproduced, the EXIF orientation is ignored and alpha
    is dropped, which shows the colours stored under transparent pixels. 16-bit grey is divided by 257 and rounded
    (Pillow would clip it at 255); 16-bit colour keeps its upper byte.
    """
    with open_image(path) as file:
        require_whole(file, path)
        return to_rgb(file)


def require_whole(image: Pillow.Image, path: Path) -> None:
    """Decode an open image, and refuse a PNG whose last rows are missing, which Pillow shows as zeros.

    Raises:
        ValueError: rows are missing. As the other exceptions of the decoder, it is for `open_image`.
    """
    image.load()
    last = np.asarray(image.crop((0, image.height - 1, image.width, image.height)))
    interlaced = bool(image.info.get("interlace"))
    if image.format == "PNG" and (interlaced or not last.any()) and not is_whole(path.read_bytes()):
        raise ValueError("image file is truncated: rows are missing")


def image_size(path: Path) -> tuple[int, int]:
    """Read width and height in pixels from the header of a file; errors as in `open_image`."""
    with open_image(path) as file:
        return file.size


def to_rgb(image: Pillow.Image) -> Pillow.Image:
    """Return an image as 8-bit RGB, by the rules of `read_rgb`."""
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


def image_files(folder: Path, suffixes: Collection[str] = SUFFIXES) -> list[str]:
    """Return relative posix paths of all images below `folder`, sorted; hidden files and other suffixes are ignored."""
    files = [path for path in _walk(folder) if Path(path).suffix.lower() in suffixes]
    return sorted(files, key=lambda path: path.split("/"))


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

    within: dict[str, frozenset[tuple[int, int]]] = {}  # folder -> what it lies in, itself included
    for top, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        try:
            about = Path(top).stat()
        except OSError as error:
            raise _closed(error) from None
        here, above = (about.st_dev, about.st_ino), within.get(str(Path(top).parent), frozenset())
        if here in above:
            raise BadInputError(f"folder {top} is a link to a folder that it lies in", fix="remove the link")
        within[str(Path(top))] = above | {here}
        folders[:] = [name for name in folders if not name.startswith(".")]
        start = Path(top).relative_to(folder).as_posix()
        prefix = "" if start == "." else f"{start}/"
        yield from (prefix + name for name in files if not name.startswith("."))


def _closed(error: OSError) -> BadInputError:
    return BadInputError(f"folder {error.filename} cannot be read ({reason_of(error)})", fix="check its permissions")


def is_whole(data: bytes) -> bool:
    """Whether the compressed stream of a PNG file holds every row that its header promises.

    Pillow shows missing rows as black. W3C, "Portable Network Graphics (PNG) Specification", sections 8 and 9: each
    row of each pass is one byte for its filter, and its pixels, rounded up to whole bytes.

    Raises:
        ValueError, struct.error, zlib.error: not a PNG file.
    """
    promised, stream, at = None, zlib.decompressobj(), _SIGNATURE
    unpacked = 0
    while at + 8 <= len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        at += 12 + size
        if name == b"IHDR":
            promised = _bytes_of(*struct.unpack(">IIBBBBB", body))
        elif name == b"IDAT" and promised is not None:
            while body and unpacked < promised:
                unpacked += len(stream.decompress(body, min(promised - unpacked, _CHUNK)))
                body = stream.unconsumed_tail
        elif name == b"IEND":
            break
    if promised is None:
        raise ValueError("no header")
    return unpacked >= promised


def _bytes_of(width: int, height: int, depth: int, colour: int, _: int, __: int, interlaced: int) -> int:
    """Return the length of the uncompressed stream; the arguments are those of the header, in its order."""
    total = 0
    for left, top, across, down in _PASSES if interlaced else ((0, 0, 1, 1),):
        columns, rows = (width - left + across - 1) // across, (height - top + down - 1) // down
        if columns > 0:
            total += max(rows, 0) * (1 + (columns * depth * _CHANNELS[colour] + 7) // 8)
    return total


# NumPy parses the header with `ast.literal_eval`. In CPython 3.11 two threads that do so at once can raise
# "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
_PARSING = Lock()
_MAGIC = b"\x93NUMPY"


def map_array(path: Path) -> NDArray[Any]:
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
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError:
            raise
        except Exception:  # noqa: BLE001 (a damaged header can fail anywhere in NumPy's reader)
            raise UnfitError("its head is damaged") from None
    return array
