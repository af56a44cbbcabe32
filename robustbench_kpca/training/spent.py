"""The time that a training has taken, in `NAME.spent.json` beside its weights: written after every epoch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from pydantic import BaseModel

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.strict import STRICT, validate_json
from robustbench_kpca._engine.inference.environment import place


class Spent(BaseModel):
    """Seconds on the clock and of the processor, of so many epochs that were finished, and of those that were lost.

    `device` and `processor` name where it was; they are empty where that is not known, or where it was several.
    """

    model_config = STRICT
    epochs: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    device: str = ""
    processor: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Device and processor, as `environment.place` names them."""
        return self.device, self.processor


def spent_file(weights: Path) -> Path:
    """Return where the time of a training is written."""
    return weights.with_name(f"{weights.name.removesuffix('.safetensors')}.spent.json")


def read_spent(weights: Path) -> Spent | None:
    """Return the time that a training took; None where it is not written."""
    path = spent_file(weights)
    try:
        return validate_json(Spent, path.read_bytes(), str(path)) if path.is_file() else None
    except BadInputError:
        return None


@contextmanager
def timed(weights: Path, device: torch.device, *, write: bool, share: float = 1.0) -> Iterator[None]:
    """Add the time of one epoch on a device, if `write`; of one that is cut short, its time alone.

    `share`: of the time, where several trainings ran at once.
    """
    started, cpu, finished = time.perf_counter(), time.process_time(), 0
    try:
        yield
        finished = 1
    except BadInputError:
        write = False  # the training was refused
        raise
    finally:
        machine, before = place(device), read_spent(weights)
        where = machine if before is None or before.place == machine else ("", "")
        before = before or Spent()
        after = Spent(
            epochs=before.epochs + finished,
            seconds=round(before.seconds + share * (time.perf_counter() - started), 3),
            cpu_seconds=round(before.cpu_seconds + share * (time.process_time() - cpu), 3),
            device=where[0],
            processor=where[1],
        )
        if write:
            write_atomic(spent_file(weights), after.model_dump_json().encode())
