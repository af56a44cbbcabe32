"""Which process on which machine wrote a file, and whether that process still runs."""

import hashlib
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Owner:
    """A process.

    Attributes:
        host: name of its machine, for people.
        place: digest of what process numbers belong to: the machine, its last start, and the container.
        pid: number of the process.
        born: when it started, in ticks since the machine did; empty where the system does not say. Numbers of processes
            are used again, but not with the same start.
    """

    host: str
    place: str
    pid: int
    born: str = ""

    @classmethod
    def here(cls) -> "Owner":
        """Return this process."""
        return cls(socket.gethostname(), place(), os.getpid(), _born(os.getpid()) or "")

    def gone(self) -> bool | None:
        """Tell whether the process has ended; None if it belongs to another place, where nobody here can look."""
        if self.place != place():
            return None
        if (born := _born(self.pid)) is not None:
            return bool(self.born and born != self.born)
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:  # of another user, and hidden from us
            return False
        return _PROC.joinpath("self", "stat").exists()  # else the system does not say when processes start

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@lru_cache(maxsize=1)
def place() -> str:
    """Return eight digits that two processes share if they see the same processes."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append((_PROC / "sys/kernel/random/boot_id").read_text())
        parts.append(str((_PROC / "self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _born(pid: int) -> str | None:
    """Return when a process started; None if there is none, or it has ended and only waits to be taken note of."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
