"""Save the progress of an evaluation, so that an interrupted run resumes at the last saved state."""

import io
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from robustbench_kpca._core.files import sealed, unsealed, write_atomic


class Journal:
    """A hidden file in the folder of what is unfinished of a record; rewritten every `interval` seconds.

    It begins with the SHA-256 of the rest, since torch does not notice altered numbers when it loads them.

    `spec` identifies everything the run depends on; `seconds_before` is the running time of earlier attempts.
    """

    def __init__(self, path: Path, spec: str, interval: float = 10.0) -> None:
        self.path, self.spec, self.interval = path, spec, interval
        self.started = self.written = time.monotonic()
        self.seconds_before = 0.0
        self.parts: list[Journal] = []
        self.before_write: list[Callable[[], None]] = []  # what must be on disk before this is; parts share it

    def part(self, name: str) -> "Journal":
        """Return the journal of a part of the run: a separate file, removed together with this one."""
        part = type(self)(self.path.with_name(f"{self.path.name}.{name}"), f"{self.spec}/{name}", self.interval)
        part.before_write = self.before_write
        self.parts.append(part)
        return part

    @property
    def earlier(self) -> float:
        """The running time of earlier attempts: where none got beyond the parts, it is in their files."""
        return self.seconds_before or max((part.seconds_before for part in self.parts), default=0.0)

    def due(self) -> bool:
        """Whether `interval` seconds have passed since the last write."""
        return time.monotonic() - self.written >= self.interval

    def write(self, content: dict[str, Any]) -> None:
        """Replace the file."""
        for save in self.before_write:
            save()
        started = time.monotonic()
        buffer = io.BytesIO()
        seconds = self.earlier + started - self.started
        torch.save({"spec": self.spec, "seconds": seconds, **content}, buffer)
        with suppress(OSError):  # `write_atomic` raises the better error
            self.path.parent.mkdir(exist_ok=True)
        write_atomic(self.path, sealed(buffer.getvalue()))
        self.written = time.monotonic()
        # write large states less often: at most 5 % of the time
        self.interval = max(self.interval, 20 * (self.written - started))

    def read(self) -> dict[str, Any] | None:
        """Return the saved state if it has the same specification, else None; a damaged file is ignored."""
        try:
            content: dict[str, Any] = torch.load(io.BytesIO(unsealed(self.path.read_bytes())), "cpu", weights_only=True)
            if content["spec"] != self.spec or not isinstance(content["rows"], (list, dict)):
                return None
            self.seconds_before = float(content["seconds"])
        except Exception:  # noqa: BLE001 (a damaged file can fail anywhere in its reader)
            return None
        return content

    def remove(self) -> None:
        """Delete the file and those of its parts."""
        for part in self.parts:
            part.remove()
        self.path.unlink(missing_ok=True)


class StoppableJournal(Journal):
    """A journal that is written at the next batch, and ends the process, once this is told to stop."""

    stopping = False

    def due(self) -> bool:
        """Whether it is time to write, which it is at once when the process must stop."""
        return StoppableJournal.stopping or super().due()

    def write(self, content: dict[str, Any]) -> None:
        """Replace the file; end the process if it was told to stop, or another one has finished the record."""
        if not self.path.parent.is_dir():
            raise SystemExit
        super().write(content)
        if StoppableJournal.stopping:
            raise SystemExit
