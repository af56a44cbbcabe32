"""An evaluation can be killed at any moment and goes on where its journal was last written."""

import io
import pickle
import time
from pathlib import Path
from typing import Any

import torch

from robustbench_kpca.files import write_atomic


class Journal:
    """One hidden file beside the record to come, replaced every `interval` seconds and removed at the end."""

    def __init__(self, path: Path, spec: str, interval: float = 10.0) -> None:
        self.path, self.spec, self.interval = path, spec, interval
        self.written = time.monotonic()

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self.written >= self.interval

    def write(self, content: dict[str, Any]) -> None:
        """Replace the file."""
        buffer = io.BytesIO()
        torch.save({"spec": self.spec, **content}, buffer)
        write_atomic(self.path, buffer.getvalue())
        self.written = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """Return what was written for the same specification, if anything; a foreign or damaged file is ignored."""
        try:
            content: dict[str, Any] = torch.load(self.path, "cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
            return None
        return content if content.get("spec") == self.spec else None

    def remove(self) -> None:
        """Forget the run."""
        self.path.unlink(missing_ok=True)
