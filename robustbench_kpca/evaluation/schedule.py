"""Which shard is next: failed ones are tried again after a pause, twice; what fails three times is given up."""

import heapq
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
        self.paused: list[tuple[float, int, Shard]] = []  # a heap: when it is due, number of the failure, shard
        self.running: set[Shard] = set()
        self.failures: dict[Shard, int] = {}
        self.failed_attempts = 0
        self.given_up: dict[Shard, str] = {}

    @property
    def open(self) -> int:
        """Number of shards that are neither finished nor given up."""
        return len(self.waiting) + len(self.paused) + len(self.running)

    def next(self) -> Shard | None:
        """Return a shard to be begun now; None if there is none, or none yet. Failed ones come first."""
        if self.paused and self.paused[0][0] <= self.clock():
            *_, shard = heapq.heappop(self.paused)
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
            self.failed_attempts += 1
            heapq.heappush(self.paused, (self.clock() + self.pauses[count - 1], self.failed_attempts, shard))

    def pause(self) -> float | None:
        """Return the seconds until a failed shard may be tried again; None if there is none."""
        return max(self.paused[0][0] - self.clock(), 0.0) if self.paused else None
