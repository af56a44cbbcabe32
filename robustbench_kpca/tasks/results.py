"""What one model answered so far, of an evaluation that needs forward passes only; a killed run goes on from it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.runner import Runner
from robustbench_kpca.records.outcomes import Outcomes


class ModelResults(ABC):
    """The answers of one model.

    Samples are numbered cell after cell, in the order in which they are shown.

    Attributes:
        name: of the model.
        runner: what runs it.
        begun: samples that an earlier attempt answered.
        seconds: the time of its passes, and its share of the time that making the samples took.

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
        """Inputs that the model was shown: those of finished samples, by this attempt or an earlier one."""

    @abstractmethod
    def show(self, first: int, batch: Any) -> None:
        """Answer samples `first`, `first` + 1, ..., unless they are answered already."""

    @abstractmethod
    def outcomes(self) -> Outcomes:
        """Return the rows of all samples, once all are answered."""

    @abstractmethod
    def content(self) -> tuple[int, dict[str, Any]]:
        """Return how many samples are answered, and their rows as the journal keeps them."""

    def finish(self) -> None:
        """Answer what still waits for its batch to fill; by default nothing waits."""
        return

    def save(self) -> None:
        """Write down what was answered so far."""
        done, rows = self.content()
        if self.journal and done:
            where = {"done": done, "forwards": self.forwards, "batch_size": self.runner.batch_size}
            self.journal.write({"rows": rows, **where})

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of some passes, and save afterwards if it is time to."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started
        if self.journal and self.journal.due():
            self.save()
