"""List image files, and decode them to 8-bit RGB; map arrays of them into memory."""

import os
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
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

FORMATS = ("BMP", "JPEG", "PNG", "GIF", "PPM", "WEBP", "TIFF", "JPEG2000", "AVIF")
"""The decoders that a file may choose by its content, whatever its name: those of still pictures. Pillow has thirty
others, such as EPS, which runs Ghostscript: more to attack."""
TEXTS = frozenset(
    [".csv", ".db", ".html", ".ini", ".json", ".log", ".md", ".py", ".sh", ".toml", ".tsv", ".txt", ".xml", ".yaml"]
)
"""Suffixes of files that are clearly no pictures, and are left out silently."""
PIXELS = "RBK_MAX_PIXELS"
UNREADABLE = (
    OSError, UnidentifiedImageError, SyntaxError, ValueError, EOFError, IndexError, RuntimeError, struct.error,
    zlib.error,
)  # fmt: skip
"""Exceptions of Pillow for files that are not images or are incomplete."""
_TOO_MANY = (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning)
_OURS = Pillow.MAX_IMAGE_PIXELS or 89_478_485
warnings.filterwarnings("error", category=Pillow.DecompressionBombWarning)  # Pillow's first limit is the limit
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # metadata is not used
_SHOWN, _LONG = 8, 16
_END_OF_CODESTREAM = b"\xff\xd9"
_SIGNATURE = 8  # bytes before the first part of a PNG file
_CHUNK = 2**20
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Passes of interlaced images (Adam7): first column, first row, and the steps between columns and rows."""


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
        BadInputError: the file is missing, no ordinary file, damaged, incomplete, of another format than `FORMATS`, of
            several frames, or of more pixels than `pixel_limit`; also where the decoder fails in the body of the `with`
            statement.
    """
    described, limit = f"{what} {name or source}", pixel_limit()
    if isinstance(source, Path):
        require_file(source, what)
    try:
        with Pillow.open(cast("Path | IO[bytes]", source), formats=FORMATS) as image:
            if image.width * image.height > limit:
                raise Pillow.DecompressionBombError
            if image.format != "MPO" and getattr(
                image, "is_animated", False
            ):  # a camera's JPEG begins with the picture
                raise ValueError("several frames or pages, where one picture is expected")
            yield image
    except _TOO_MANY:
        raise BadInputError(
            f"{described} has more than {limit:,} pixels", fix=f"shrink or remove it, or set {PIXELS}"
        ) from None
    except UNREADABLE as error:
        why = f"none of {', '.join(FORMATS)}" if isinstance(error, UnidentifiedImageError) else error
        raise BadInputError(f"{described} cannot be read ({why})", fix="replace or remove it") from None


def read_rgb(path: Path) -> Pillow.Image:
    """Decode a file to RGB: grey is repeated, palettes are resolved, CMYK is converted; errors as in `open_image`.

    As in torchvision and timm, so that published numbers can be reproduced, the EXIF orientation is ignored and alpha
    is dropped, which shows the colours stored under transparent pixels. 16-bit grey is divided by 257 and rounded
    (Pillow would clip it at 255); 16-bit colour keeps its upper byte. Grey of 32 bits is refused, because the file does
    not say which value is white. Pillow itself turns a TIFF as its orientation says.
    """
    with open_image(path) as file:
        require_whole(file, path)
        return to_rgb(file)


def require_whole(image: Pillow.Image, path: Path) -> None:
    """Decode an open image, and refuse a PNG whose last rows are missing, and a JPEG 2000 whose end is.

    Pillow shows the rows as zeros. OpenJPEG shows what is there of a codestream, whose end is a marker that cannot
    occur within it (ISO/IEC 15444-1, A.2).

    Raises:
        ValueError: rows are missing. As the other exceptions of the decoder, it is for `open_image`.
    """
    image.load()
    last = np.asarray(image.crop((0, image.height - 1, image.width, image.height)))
    interlaced = bool(image.info.get("interlace"))
    if image.format == "PNG" and (interlaced or not last.any()) and not is_whole(path.read_bytes()):
        raise ValueError("image file is truncated: rows are missing")
    if image.format == "JPEG2000" and _END_OF_CODESTREAM not in path.read_bytes():
        raise ValueError("image file is truncated: its end is missing")


def image_size(path: Path) -> tuple[int, int]:
    """Read width and height in pixels from the header of a file; errors as in `open_image`."""
    with open_image(path) as file:
        return file.size


def to_rgb(image: Pillow.Image) -> Pillow.Image:
    """Return an image as 8-bit RGB, by the rules of `read_rgb`.

    Raises:
        ValueError: grey of 32 bits, or a mode that Pillow cannot convert, such as CIE Lab.
    """
    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
        raise ValueError("grey of 32 bits, whose white is not known")
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Pillow.fromarray(((levels + 128) // 257).astype(np.uint8))
    elif "transparency" in image.info:  # without this, Pillow warns about the loss of alpha, which is intended
        image = image.convert("RGBA")
    return image.convert("RGB")


@cache
def suffixes() -> frozenset[str]:
    """Return the suffixes of `FORMATS` that this Pillow can open, in lower case."""
    return frozenset(
        suffix for suffix, form in Pillow.registered_extensions().items() if form in FORMATS and form in Pillow.OPEN
    )


def listing(folder: Path) -> tuple[list[str], bool]:
    """Return all images below `folder`, and whether there are no other files; hidden ones are ignored.

    Images are relative posix paths, sorted.
    """
    read, paths = suffixes(), list(_walk(folder))
    files = [path for path in paths if _suffix(path) in read]
    return sorted(files, key=lambda path: path.replace("/", "\0")), len(files) == len(paths)


def image_files(folder: Path) -> list[str]:
    """Return relative posix paths of all images below `folder`, sorted; hidden files and other suffixes are ignored."""
    return listing(folder)[0]


def left_out(folder: Path, read: Collection[str] | None = None, but: Collection[Path] = ()) -> tuple[str, ...]:
    """Say in one line which files below a folder `image_files` ignores, by number and suffix; in none if only texts.

    Args:
        folder: the folder.
        read: the suffixes that are read, in place of `suffixes`.
        but: folders that are known to contain images only.
    """
    expected, known = TEXTS.union(suffixes() if read is None else read), {str(path) for path in but}
    ignored = Counter(suffix for path in _walk(folder, but=known) if (suffix := _suffix(path)) not in expected)
    return (f"{ignored.total()} files of {folder.name} were left out: {_by_suffix(ignored)}",) if ignored else ()


def no_images(folder: Path) -> str:
    """Return in words why `image_files` finds nothing below a folder: no files, or none with a known suffix."""
    ignored = Counter(map(_suffix, _walk(folder)))
    return f"no picture in a format that is read, but {_by_suffix(ignored)}" if ignored else "no images"


def _suffix(path: str) -> str:
    """Return the suffix as `Path.suffix` has it, in lower case; a `Path` of each of 3.75 million names takes long."""
    stem, dot, end = path.rpartition("/")[2].rpartition(".")
    return f"{dot}{end}".lower() if stem.strip(".") and end else ""


def _by_suffix(files: Counter[str]) -> str:
    """Write numbers of files by suffix: `3 .heic, 1 .mov, 1 without suffix`."""
    most = sorted(files.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
    counts = [f"{count} {ascii(suffix)[1:-1][:_LONG] or 'without suffix'}" for suffix, count in most]
    return ", ".join(counts + ["..."] * (len(files) > _SHOWN))


def sub_folders(folder: Path) -> list[str]:
    """Return the names of the folders in `folder`, sorted as text, without hidden ones."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not _is_hidden(entry.name))
    except OSError as error:
        raise _closed(error) from None


def _walk(
    folder: str | Path, prefix: str = "", above: frozenset[tuple[int, int]] = frozenset(), but: Collection[str] = ()
) -> Iterator[str]:
    """Yield the paths of all files below a folder, relative to it, after `prefix`.

    above: what the folder lies in, by device and inode.
    but: folders that are not looked into.
    """
    names, below = [], []
    try:
        about = Path(folder).stat()
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_hidden(entry.name):
                    continue
                if entry.is_file(follow_symlinks=False) or not os.path.isdir(entry.path):  # noqa: PTH112 never raises
                    names.append(entry.name)
                else:
                    below.append(entry)
    except OSError as error:
        raise _closed(error) from None
    inode = (about.st_dev, about.st_ino)
    if inode in above:
        raise BadInputError(f"folder {folder} is a link to a folder that it lies in", fix="remove the link")
    yield from (prefix + name for name in names) if prefix else names
    for entry in below:
        if entry.path not in but:
            yield from _walk(entry.path, f"{prefix}{entry.name}/", above | {inode}, but)


def _is_hidden(name: str) -> bool:
    """Tell whether nobody put a file or folder there to be read: macOS adds `__MACOSX` to its archives."""
    return name.startswith(".") or name == "__MACOSX"


def _closed(error: OSError) -> BadInputError:
    return BadInputError(f"folder {error.filename} cannot be read ({reason_of(error)})", fix="check its permissions")


def is_whole(data: bytes) -> bool:
    """Whether the compressed stream of a PNG file holds every row that its header promises.

    Pillow shows missing rows as black. W3C, "Portable Network Graphics (PNG) Specification", sections 8 and 9: each
    row of each pass is one byte for its filter, and its pixels, rounded up to whole bytes.

    Raises:
        ValueError, struct.error, zlib.error: not a PNG file.
    """
    expected, stream, at = None, zlib.decompressobj(), _SIGNATURE
    unpacked = 0
    while at + 8 <= len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        at += 12 + size
        if name == b"IHDR":
            expected = _bytes_of(*struct.unpack(">IIBBBBB", body))
        elif name == b"IDAT" and expected is not None:
            while body and unpacked < expected:
                unpacked += len(stream.decompress(body, min(expected - unpacked, _CHUNK)))
                body = stream.unconsumed_tail
        elif name == b"IEND":
            break
    if expected is None:
        raise ValueError("no header")
    return unpacked >= expected


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
