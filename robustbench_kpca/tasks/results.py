"""Interface `ModelResults`: results of one model in an evaluation by forward passes; saved, so a run can resume."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.records.outcomes import Outcomes


class ModelResults(ABC):
    """The results of one model. Samples are numbered cell by cell, in the order of evaluation.

    Attributes:
        begun: number of samples that an earlier attempt finished.
        seconds: time of its forward passes plus its share of the time for loading and corrupting samples.
    """

    def __init__(self, name: str, runner: Runner, journal: Journal | None) -> None:
        self.name, self.runner, self.journal = name, runner, journal
        self.begun, self.seconds = 0, 0.0
        saved = journal.read() if journal else None
        if saved:
            runner.batch_size = min(runner.batch_size, int(saved["batch_size"]))
            self.begun = int(saved["done"])
        self.saved: dict[str, Any] = saved or {}

    @property
    @abstractmethod
    def forwards(self) -> int:
        """Number of inputs that the model evaluated for finished samples, including earlier attempts."""

    @abstractmethod
    def show(self, first: int, batch: Any) -> None:
        """Take samples `first`, `first` + 1, ..., unless they are finished already; they may wait for a full batch."""

    @abstractmethod
    def outcomes(self) -> Outcomes:
        """Return the outcomes of all samples, after all are finished."""

    @abstractmethod
    def content(self) -> tuple[int, dict[str, Any]]:
        """Return the number of finished samples, and their rows in the format of the journal."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the record must know about how the samples were shown; flags of the record."""
        return ()

    def finish(self) -> None:
        """Evaluate samples that still wait for a full batch; by default there are none."""
        return

    def save(self) -> None:
        """Write the results so far to the journal."""
        done, rows = self.content()
        if self.journal and done:
            where = {"done": done, "forwards": self.forwards, "batch_size": self.runner.batch_size}
            self.journal.write({"rows": rows, **where})

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time of some passes to `seconds`; afterwards save if the journal is due."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started
        if self.journal and self.journal.due():
            self.save()
