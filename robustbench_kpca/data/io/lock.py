"""A lock file: only one process at a time works on a folder. The lock ends with its process, even if it is killed."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import unwritable


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock on the file `path`; the empty file remains. If another process holds the lock, wait or refuse.

    Raises:
        BadInputError: the folder is not writable, or another process holds the lock and `wait` is false.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise unwritable(path.parent, error) from None
    with file:
        try:
            # A POSIX lock: unlike one by flock, child processes do not inherit it and cannot keep it.
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError):
            raise BadInputError(f"another process is writing to {path.parent}", fix="wait until it is done") from None
        yield
