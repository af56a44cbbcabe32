"""A lock that is a file: it needs `link` and `rename` only, so it also holds where several machines share a folder.

The file names its holder and carries a number that the holder raises every `BEAT` seconds. A holder that has ended on
this machine is seen at once. One on another machine counts as gone when its number has not changed during `LOOKS`
looks, `LOOK` seconds apart: no clock is compared with another, and neither a clock that jumps nor a machine that
sleeps makes a lock old. See docs/decisions/0047-locks-by-link-and-a-sign-of-life.md.
"""

import errno
import glob
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._core.files import hidden_name, unwritable
from robustbench_kpca._core.owner import Owner

BEAT = 5.0
LOOK = 1.0
LOOKS = 60
_NUMBER = b"\n%012d\n"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: `token` is drawn anew for every lock, `since` is when it was taken, by the holder's clock."""

    token: str
    since: str
    owner: Owner

    @classmethod
    def read(cls, content: bytes) -> "Holder | None":
        """Return the holder that a lock file names; None if it is damaged."""
        try:
            fields = json.loads(content.partition(b"\n")[0])
            return cls(str(fields["token"]), str(fields["since"]), Owner(**fields["owner"]))
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        return f"{self.owner} since {self.since}"


class _HeldError(Exception):
    """Somebody else holds the lock."""


class Lock:
    """One lock; it is taken by `acquire` and given back by `release`.

    Attributes:
        path: of the lock file, which exists while somebody holds the lock.
        lost: another process took the lock over, since this one stood still for too long.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lost = path, False
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.me = Holder(secrets.token_hex(4), now, Owner.here())
        self.line = json.dumps(asdict(self.me)).encode()
        self.file = -1
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._beat, name=f"lock {path.name}", daemon=True)

    def acquire(self, *, wait: bool) -> None:
        """Take the lock. If another process holds it, wait for it or refuse.

        Raises:
            BadInputError: another process holds the lock and `wait` is false.
            OSError: the folder cannot be written.
        """
        try:
            self.take(wait=wait)
        except _HeldError as error:
            raise BadInputError(
                f"another process is writing to {self.path.parent} ({error})", fix="wait until it is done"
            ) from None
        self.thread.start()

    def release(self) -> None:
        """Give the lock back, unless another process has taken it over. A forked process does nothing."""
        if self.me.owner.pid != os.getpid():
            return
        self.done.set()
        self.thread.join()  # the number of a closed file may be given to another one
        with suppress(OSError, _HeldError), _claimed(self.path, self.me.token):
            if _token(_content(self.path)) == self.me.token:
                self.path.unlink()
        os.close(self.file)
        self._sweep()

    def require(self) -> None:
        """Check that the lock is still held.

        Raises:
            EvaluationError: it was taken over.
        """
        if self.lost:
            raise EvaluationError(
                f"another process took over {self.path}, since this one stood still for more than {LOOK * LOOKS:.0f} s",
                fix="let the other one finish",
            )

    def take(self, *, wait: bool) -> None:
        """Take the lock without giving signs of life."""
        own = self.path.with_name(hidden_name())
        try:
            self.file = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            self._write()
            seen, looks = b"", 0
            while not self._link(own):
                content = _content(self.path)
                if content is None:  # given back in this moment
                    continue
                holder = Holder.read(content)
                gone = None if holder is None else holder.owner.gone()
                looks = looks + 1 if content == seen else 0
                if gone or (gone is None and looks >= LOOKS):
                    seen, looks = b"", 0
                    if self._take_over(own, content):
                        return
                elif not wait and (gone is False or (seen and looks == 0)):  # it runs, or its number has changed
                    raise _HeldError(holder or "its lock file is damaged")
                else:
                    seen = content
                time.sleep(LOOK)
        except BaseException:
            if self.file >= 0:
                os.close(self.file)
            raise
        finally:
            own.unlink(missing_ok=True)

    def _write(self) -> None:
        os.pwrite(self.file, self.line + _NUMBER % 0, 0)
        os.fsync(self.file)

    def _link(self, own: Path) -> bool:
        """Give the own file the name of the lock, unless that exists."""
        try:
            os.link(own, self.path)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno in _NO_LINKS:
                return self._create()
            if own.stat().st_nlink != 2:
                raise
        return own.stat().st_nlink == 2  # the reply of a file server may be lost: this is the truth

    def _create(self) -> bool:
        """Do the same where the file system has no links: for a moment the file is empty, so it counts as damaged."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        os.close(self.file)
        self.file = file
        self._write()
        return True

    def _take_over(self, own: Path, content: bytes) -> bool:
        """Put the own file in the place of one whose holder is gone; only one process at a time may try."""
        token = _token(content)
        try:
            with _claimed(self.path, token):
                if _token(_content(self.path)) != token:
                    return False
                own.replace(self.path)
                return True
        except _HeldError:
            return False

    def _sweep(self) -> None:
        """Delete claims on this lock whose holders have ended on this machine."""
        with suppress(OSError):
            for path in self.path.parent.glob(f"{glob.escape(self.path.name)}.????????"):
                holder = Holder.read(_content(path) or b"")
                if holder is not None and holder.owner.gone():
                    path.unlink(missing_ok=True)

    def _beat(self) -> None:
        """Raise the number in the own file; notice when the name belongs to another file."""
        number = 0
        while not self.done.wait(BEAT):
            number += 1
            with suppress(OSError):
                os.pwrite(self.file, _NUMBER % number, len(self.line))
                os.fsync(self.file)
            with suppress(OSError):
                if _token(_content(self.path)) != self.me.token:
                    self.lost = True
                    return


@contextmanager
def _claimed(path: Path, token: str) -> Iterator[None]:
    """Have the sole right to replace or delete the lock with this token: a lock on its name, held for a moment."""
    claim = Lock(path.with_name(f"{path.name}.{token}"))
    claim.take(wait=False)
    try:
        yield
    finally:
        if _token(_content(claim.path)) == claim.me.token:
            claim.path.unlink(missing_ok=True)
        os.close(claim.file)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _token(content: bytes | None) -> str:
    """Return what tells a lock from every other; of a damaged file, its own digest."""
    if content is None:
        return ""
    holder = Holder.read(content)
    return holder.token if holder else hashlib.sha256(content).hexdigest()[:8]


def named_in(path: Path) -> Holder | None:
    """Return whom a lock file names; None if there is none, or it is damaged or no lock of ours."""
    with suppress(OSError):
        return Holder.read(_content(path) or b"")
    return None


def holder_of(path: Path) -> Holder | None:
    """Return who holds a lock, as its file says; None if nobody does, or the holder has ended on this machine."""
    holder = named_in(path)
    return None if holder is None or holder.owner.gone() else holder


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[Lock]:
    """Hold the lock `path`. Its folder is made, and deleted again if nothing else was written to it.

    If another process holds the lock, wait or refuse.

    Raises:
        BadInputError: the folder is not writable, or another process holds the lock and `wait` is false.
    """
    lock, existed = Lock(path), path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(wait=wait)
        except FileNotFoundError:  # another holder, for whom the folder was new, has deleted it
            existed = False
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(wait=wait)
    except OSError as error:
        raise unwritable(path.parent, error) from None
    try:
        yield lock
    finally:
        lock.release()
        if not existed:
            with suppress(OSError):
                path.parent.rmdir()
