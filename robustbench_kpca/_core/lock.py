"""A lock that is a file, held by `flock`: the system frees the lock of a process that has ended, however it ended.

Where a file server does not pass locks on, two machines may both hold one. Then they do some work twice, and the
results are the same bytes, because files appear by `rename` and outcomes do not depend on who makes them.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import unwritable

_MARK = "rbk: "
MOMENT = 0.2
"""Seconds to try before a lock counts as held, because `is_held` takes it for an instant."""


def holder_in(path: Path) -> str:
    """Return who took a lock last, as its file says: `process 7 on node3`; "" if the file is not one of ours."""
    with suppress(OSError), path.open("rb") as file:
        text = file.read(200).decode(errors="replace")
        return text.removeprefix(_MARK).strip() if text.startswith(_MARK) else ""
    return ""


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock `path`."""
    if not path.is_file():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # the file is another user's, or was deleted in this moment
        return path.is_file()
    lock.release()
    return False


class HeldError(BadInputError):
    """Another process holds a lock."""


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock `path`. Its folder is made, and deleted again if nothing else was written to it.

    If another process holds the lock, wait or refuse.

    Raises:
        HeldError: another process holds the lock, and `wait` is false.
        BadInputError: the folder is not writable.
    """
    existed = path.parent.exists()
    try:
        lock = _acquired(path, wait=wait)
    except Timeout:
        who = f" ({holder})" if (holder := holder_in(path)) else ""
        raise HeldError(f"another process is writing to {path.parent}{who}", fix="wait until it is done") from None
    except OSError as error:
        raise unwritable(path.parent, error) from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while the lock is held: who waits sees that the file has no name any more, and tries anew
        lock.release()
        if not existed:
            with suppress(OSError):
                path.parent.rmdir()


def _acquired(path: Path, *, wait: bool) -> BaseFileLock:
    lock = FileLock(path, timeout=-1 if wait else MOMENT)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except FileNotFoundError:  # another holder, for whom the folder was new, has deleted it
            continue
        path.write_text(f"{_MARK}process {os.getpid()} on {socket.gethostname()}\n")
        return lock
