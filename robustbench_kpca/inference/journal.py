"""An evaluation can be killed at any moment and goes on where its journal was last written."""

import io
import time
from pathlib import Path
from typing import Any

import torch

from robustbench_kpca.files import write_atomic


class Journal:
    """One hidden file beside the record to come, replaced every `interval` seconds and removed at the end.

    `spec` identifies what the run depends on; `seconds_before` is the time that earlier attempts took.
    """

    def __init__(self, path: Path, spec: str, interval: float = 10.0) -> None:
        self.path, self.spec, self.interval = path, spec, interval
        self.started = self.written = time.monotonic()
        self.seconds_before = 0.0
        self.parts: list[Journal] = []

    def part(self, name: str) -> "Journal":
        """Return the journal of a part of the run, in a file of its own that is removed with this one."""
        part = Journal(self.path.with_name(f"{self.path.name}.{name}"), f"{self.spec}/{name}", self.interval)
        self.parts.append(part)
        return part

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self.written >= self.interval

    def write(self, content: dict[str, Any]) -> None:
        """Replace the file."""
        started = time.monotonic()
        buffer = io.BytesIO()
        seconds = self.seconds_before + started - self.started
        torch.save({"spec": self.spec, "seconds": seconds, **content}, buffer)
        write_atomic(self.path, buffer.getvalue())
        self.written = time.monotonic()
        self.interval = max(self.interval, 20 * (self.written - started))  # large states are written less often

    def read(self) -> dict[str, Any] | None:
        """Return what was written for the same specification, if anything; a foreign or damaged file is ignored."""
        try:
            content: dict[str, Any] = torch.load(self.path, "cpu", weights_only=True)
            if content["spec"] != self.spec or not isinstance(content["rows"], (list, dict)):
                return None
            self.seconds_before = float(content["seconds"])
        except Exception:  # noqa: BLE001 (a damaged file can fail anywhere in its reader)
            return None
        return content

    def remove(self) -> None:
        """Forget the run."""
        for part in self.parts:
            part.remove()
        self.path.unlink(missing_ok=True)
