"""Which shard is next: failed ones are tried again after a pause, twice; what fails three times is given up."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from robustbench_kpca.evaluation.shards import Shard

PAUSES = (1.0, 5.0)
"""Seconds before the second and before the third attempt."""


class Schedule:
    """The shards that are not finished, in order.

    Attributes:
        given_up: why, by shard, for those that failed at every attempt.

    """

    def __init__(
        self,
        shards: Sequence[Shard],
        pauses: Sequence[float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pauses, self.clock = PAUSES if pauses is None else pauses, clock
        self.waiting = deque(shards)
        self.paused: list[tuple[float, Shard]] = []
        self.running: set[Shard] = set()
        self.failures: dict[Shard, int] = {}
        self.given_up: dict[Shard, str] = {}

    @property
    def open(self) -> int:
        """Number of shards that are neither finished nor given up."""
        return len(self.waiting) + len(self.paused) + len(self.running)

    def next(self) -> Shard | None:
        """Return a shard to be begun now; None if there is none, or none yet. Failed ones come first."""
        due = min(self.paused, default=None, key=lambda one: one[0])
        if due is not None and due[0] <= self.clock():
            self.paused.remove(due)
            shard = due[1]
        elif self.waiting:
            shard = self.waiting.popleft()
        else:
            return None
        self.running.add(shard)
        return shard

    def finished(self, shard: Shard) -> None:
        """Take note that a shard is done."""
        self.running.remove(shard)

    def failed(self, shard: Shard, why: str) -> None:
        """Take note that a shard failed: it waits for another attempt, or is given up."""
        self.running.remove(shard)
        count = self.failures[shard] = self.failures.get(shard, 0) + 1
        if count > len(self.pauses):
            self.given_up[shard] = why
        else:
            self.paused.append((self.clock() + self.pauses[count - 1], shard))

    def pause(self) -> float | None:
        """Return the seconds until a failed shard may be tried again; None if there is none."""
        return max(min(when for when, _ in self.paused) - self.clock(), 0.0) if self.paused else None
