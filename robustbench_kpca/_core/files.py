"""Write files atomically (complete or not at all), and make safe file names."""

import contextlib
import csv
import fcntl
import hashlib
import io
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from robustbench_kpca._core.errors import DISK_FULL, BadInputError, EvaluationError, UnfitError, reason_of

OLD = 86_400
"""Seconds after which a file that nobody names is taken for left behind: no write takes a day."""


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_CHECK = "check the path"


def safe_file(name: str) -> str:
    """Refuse a file name from a record that would leave the record's folder."""
    if Path(name).name != name or name in ("", ".", "..") or not name.isprintable() or len(name.encode()) > 255:
        raise BadInputError(f"a record names the file {name[:80]!r}", expected="a plain file name")
    return name


def require_file(path: Path, what: str = "file", fix: str = _CHECK) -> None:
    """Check that `path` is an ordinary file, or a link to one, before it is opened: opening a FIFO waits for a writer.

    Raises:
        BadInputError: there is none, or it is a folder, FIFO, socket or device, or a link that leads nowhere.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise _unreadable(path, what, error, fix) from None
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise BadInputError(f"{what} {path} cannot be read (it is {kind})", expected="an ordinary file")


def read_file(path: Path, what: str = "file", most: int | None = None, fix: str = _CHECK) -> bytes:
    """Return the content of an ordinary file of at most `most` bytes; `what` it is, and `fix`, in errors.

    Raises:
        BadInputError: as `require_file`, or it is larger, or it cannot be read.
    """
    require_file(path, what, fix)
    try:
        if most is not None and path.stat().st_size > most:
            raise BadInputError(f"{what} {path} has {path.stat().st_size:,} bytes", expected=f"at most {most:,}")
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, what, error, fix) from None


def _unreadable(path: Path, what: str, error: OSError | ValueError, fix: str) -> BadInputError:
    reason = reason_of(error) if isinstance(error, OSError) else "no file can have this name"
    return BadInputError(f"{what} {path} cannot be read ({reason})", fix=fix)


def require_marked(paths: Iterable[Path], mark: str, why: str) -> None:
    """Refuse to replace files without a mark, such as a page of the user's own; `why` says what they are not.

    Raises:
        BadInputError: there is such a file, or one that cannot be read.
    """
    for path in paths:
        if os.path.lexists(path) and mark.encode() not in read_file(path):
            raise BadInputError(f"{path} {why}, and would be replaced", fix="choose another folder, or move that file")


def as_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV, with the same ends of lines on every system."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


_ACTIVE = tuple("=+-@\t\r\x1b\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What a text begins with that a spreadsheet would compute, or a terminal obey; and marks that turn the direction."""


def inert(cell: object) -> object:
    """Return a cell of a table for spreadsheets: a text that begins with `_ACTIVE` gets a ' before it; numbers stay."""
    if not isinstance(cell, str) or not cell.startswith(_ACTIVE):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to a hidden file beside `path`, flush it to disk, rename it to `path`, and flush the folder.

    Raises:
        BadInputError: the folder is not writable.
        EvaluationError: the disk is full or fails; a previous file at `path` is unchanged, the hidden file is deleted.
    """
    if path.is_dir():
        raise BadInputError(f"{path} is a folder", expected="the name of a file")
    if path.exists() and not path.is_file():
        raise BadInputError(f"{path} is no ordinary file, and would be replaced", fix="name another file")
    try:
        replace_file(path, data, durable=True)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise EvaluationError(
                f"cannot write {path} ({reason_of(error)}); a previous file at this path is intact",
                fix="free disk space and run again",
            ) from None
        raise unwritable(path.parent, error) from None


def replace_file(path: Path, data: bytes, *, durable: bool) -> None:
    """Write `data` to a hidden file in the folder of `path` and rename it.

    With `durable` the file is flushed to disk before it is renamed, and its folder afterwards, so that neither a crash
    of the machine nor a loss of power leaves half a file under the name or loses it.

    Raises:
        OSError: the file cannot be written; the hidden file is deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f"{_HIDDEN}{secrets.token_hex(8)}{_UNFINISHED}")
    try:
        with hidden.open("xb") as file:
            _mark_as_written(file)
            sweep_unfinished(path.parent, os.fstat(file.fileno()).st_mtime)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    if durable:
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, so that a rename survives a loss of power; not every file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_HIDDEN, _UNFINISHED = ".rbk-", ".tmp"
_SWEPT: dict[Path, float] = {}  # folder -> when this process last swept it


def _mark_as_written(file: IO[bytes]) -> None:
    """Hold a lock on a file while it is written; the system frees it if this process is killed."""
    with contextlib.suppress(OSError):  # not every file system has locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep_unfinished(folder: Path, now: float) -> None:
    """Delete hidden files that a killed process left while it wrote, once an hour at most.

    `now` is the time of the file system, as a new file has it: the clock of this machine may be another.
    """
    key, since = folder.absolute(), time.monotonic()
    if key in _SWEPT and since - _SWEPT[key] < 3600:
        return
    _SWEPT[key] = since
    for path in folder.glob(f"{_HIDDEN}*{_UNFINISHED}"):
        with contextlib.suppress(OSError):
            about = path.stat()  # an empty file may be one that its process has made and not locked yet
            if now - about.st_mtime > OLD or (about.st_size and not _is_written(path)):
                path.unlink(missing_ok=True)


def _is_written(path: Path) -> bool:
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # the lock is held, or this file system has none
            return True
    return False


def require_writable(folder: Path) -> None:
    """Check that `folder` can be created and written, before long work starts; no file remains.

    Raises:
        BadInputError: the folder is not writable.
    """
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise unwritable(folder, error) from None


def unwritable(folder: Path, error: OSError) -> BadInputError:
    """Return the error for a folder that is not writable."""
    return BadInputError(
        f"cannot write to folder {folder} ({reason_of(error)})", fix="choose a folder you may write to"
    )


def from_here(path: Path) -> Path:
    """Return a path relative to the current folder if it lies below that folder; otherwise return the path."""
    current = Path.cwd()
    return path.relative_to(current) if path.is_absolute() and path.is_relative_to(current) else path


def safe_name(text: str) -> str:
    """Turn any name into one path component: letters, digits, `._-@`; never `.` or `..`; at most 120 characters."""
    name = re.sub(r"[^A-Za-z0-9._@-]+", "-", text).strip("-.")
    if not name or len(name) > 120:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        name = f"{name[:100]}-{digest}".lstrip("-")
    return name


def name_with_seed(name: str, seed: int) -> str:
    """Return the name of a recipe's run with one of several seeds: `NAME-s3`."""
    return f"{name}-s{seed}"


def without_seed(name: str) -> tuple[str, int | None]:
    """Split the name of a run into that of its recipe and the seed: the inverse of `name_with_seed`."""
    match = re.fullmatch(r"(.+)-s(\d+)", name)
    return (match[1], int(match[2])) if match else (name, None)


def by_number(path: Path) -> tuple[str, int, str]:
    """Key that sorts table-2 before table-10, and table-2b between them."""
    stem, _, number = path.stem.partition("-")
    digits = number[: next((at for at, char in enumerate(number) if not char.isdecimal()), len(number))]
    return stem, int(digits or 0), number


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sealed(data: bytes) -> bytes:
    """Put the SHA-256 of the data before them, as a line of its own."""
    return f"{sha256(data)}\n".encode() + data


def unsealed(content: bytes) -> bytes:
    """Return what `sealed` was given.

    Raises:
        UnfitError: the content is truncated or altered.
    """
    digest, _, data = content.partition(b"\n")
    if digest != sha256(data).encode():
        raise UnfitError("its SHA-256 does not fit")
    return data
