"""How far a worker is with its shard, how long it is silent, and how long the rest of a record takes. No torch."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from robustbench_kpca.evaluation.shard_folder import Running, now

TICK = 2.0
"""Most seconds of silence that one look adds. If this process itself was stopped for an hour, no worker was silent."""


@dataclass
class Turn:
    """One worker's work on one shard.

    Attributes:
        rows: of the shard.
        host: of the worker.
        pid: of the worker.
        done: rows that are done.
        silent: seconds since the worker last finished a batch.

    """

    rows: int
    host: str
    pid: int
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    silent: float = 0.0
    since: str = field(default_factory=now)

    def __post_init__(self) -> None:
        self.started = self.looked = self.told = self.clock()
        self.first: int | None = None

    def heard(self, done: int) -> None:
        """Take note of finished batches. The rate begins at the first news: a resumed shard begins with rows done."""
        if self.first is None:
            self.first, self.started = done, self.clock()
        self.done, self.silent, self.told = done, 0.0, self.clock()

    def look(self) -> float:
        """Return the seconds of silence: the sum of those between two looks, each at most `TICK`."""
        now = self.clock()
        self.silent += min(max(now - self.looked, 0.0), TICK)
        self.looked = now
        return self.silent

    def running(self) -> Running:
        """Return what `rbk status` shows."""
        seconds, rows = self.told - self.started, self.done - (self.first or 0)
        rate = rows / seconds if rows > 0 and seconds > 0 else None
        return Running(self.host, self.pid, self.since, self.done, self.rows, rate)


def time_left(rows: int, done: int, seconds: float, workers: int) -> float | None:
    """Return the seconds that the rest of a record takes: rows × seconds a row / workers.

    Args:
        rows: that are not done.
        done: rows of the finished shards; None is returned where there are none.
        seconds: that those took.
        workers: that share the work.

    """
    return rows * seconds / done / max(workers, 1) if done and seconds else None
