"""A run of many workers in virtual time: the package's own schedule decides, made-up workers do the work."""

import heapq
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from robustbench_kpca.evaluation.shard_run import Schedule
from robustbench_kpca.records.shards import Shard


@dataclass(frozen=True)
class World:
    """What happens to the workers; all times in seconds.

    Attributes:
        seconds: of a shard, for a worker of speed 1.
        workers: their number.
        spread: standard deviation of the logarithm of a worker's speed.
        slow: share of attempts that take `slower` times as long.
        life: mean time until a worker is lost (exponential); its journal keeps all but the last `journal` seconds.
        start: until a lost worker is replaced.
        every, share, away: so often, so many workers are pre-empted for so long; they write their journals before.
        poisoned: number of shards that fail whenever they are tried, half-way.
        seed: of all of this.

    """

    seconds: float
    workers: int = 1000
    spread: float = 0.15
    slow: float = 0.01
    slower: float = 5.0
    life: float = math.inf
    journal: float = 11.0
    start: float = 60.0
    every: float = math.inf
    share: float = 0.2
    away: float = 600.0
    poisoned: int = 0
    seed: int = 0


@dataclass
class Told:
    """What came of it.

    Attributes:
        makespan: virtual seconds until nothing was open.
        work: seconds of work of all shards, at speed 1; `wasted`: of it what was done and lost.
        ideal: seconds if all workers had worked all the time.
        finished: number of times that each shard was finished.
        lost, preempted: attempts that ended so; `attempts`: all.
        given_up: shards that failed at every attempt.
        deciding: CPU seconds of the schedule.

    """

    work: float
    ideal: float
    makespan: float = 0.0
    wasted: float = 0.0
    attempts: int = 0
    lost: int = 0
    preempted: int = 0
    deciding: float = 0.0
    finished: dict[Shard, int] = field(default_factory=dict)
    given_up: list[Shard] = field(default_factory=list)


class Simulation:
    """Workers that take shards from a `Schedule`, in virtual time."""

    def __init__(self, shards: Sequence[Shard], world: World) -> None:
        self.world, self.random, self.now = world, random.Random(world.seed), 0.0
        self.schedule = Schedule(shards)
        self.speed = [math.exp(self.random.gauss(0, world.spread)) for _ in range(world.workers)]
        biggest = max(shard.last - shard.first for shard in shards)
        self.left = {shard: world.seconds * (shard.last - shard.first) / biggest for shard in shards}
        self.poisoned = set(self.random.sample(list(shards), world.poisoned))
        self.idle = list(range(world.workers))
        self.busy: dict[int, tuple[Shard, float, float]] = {}  # worker -> shard, since when, at which speed
        self.round = [0] * world.workers  # of a worker: what was arranged in an earlier one no longer happens
        self.events: list[tuple[float, int, str, int, int]] = []
        self.told = Told(sum(self.left.values()), sum(self.left.values()) / sum(self.speed))

    def run(self) -> Told:
        """Go on until every shard is finished or given up."""
        for worker in range(self.world.workers):
            self._arrange(self._life(), "lost", worker)
        self._arrange(self.world.every, "preempt")
        self._give()
        while self.schedule.open:
            self.now, _, kind, worker, turn = heapq.heappop(self.events)
            if kind == "preempt":
                self._preempt()
            elif turn == self.round[worker] or kind == "lost":
                getattr(self, f"_{kind}")(worker)
            self._give()
        self.told.makespan, self.told.given_up = self.now, list(self.schedule.given_up)
        return self.told

    def _arrange(self, after: float, kind: str, worker: int = 0) -> None:
        if after < math.inf:
            heapq.heappush(
                self.events, (self.now + after, self.random.getrandbits(48), kind, worker, self.round[worker])
            )

    def _give(self) -> None:
        started = time.process_time()
        while self.idle and (shard := self.schedule.next()) is not None:
            worker = self.idle.pop()
            slower = self.world.slower if self.random.random() < self.world.slow else 1.0
            speed = self.speed[worker] / slower
            self.busy[worker] = (shard, self.now, speed)
            self.told.attempts += 1
            poisoned = shard in self.poisoned
            self._arrange(self.left[shard] / speed / (2 if poisoned else 1), "failed" if poisoned else "made", worker)
        self.told.deciding += time.process_time() - started

    def _made(self, worker: int) -> None:
        shard, *_ = self._end(worker)
        self.told.finished[shard] = self.told.finished.get(shard, 0) + 1
        self.schedule.finished(shard)
        self.idle.append(worker)

    def _failed(self, worker: int) -> None:
        shard, since, speed = self._end(worker)
        self.told.wasted += (self.now - since) * speed
        self.schedule.failed(shard, "poisoned")
        self.idle.append(worker)

    def _lost(self, worker: int) -> None:
        """End a worker; what its journal had is kept."""
        self._arrange(self._life() + self.world.start, "lost", worker)
        if self._take_away(worker, self.world.journal, self.world.start, "its process was killed"):
            self.told.lost += 1

    def _preempt(self) -> None:
        self._arrange(self.world.every, "preempt")
        for worker in self.random.sample(range(self.world.workers), round(self.world.share * self.world.workers)):
            if self._take_away(worker, 0.0, self.world.away, "its process was pre-empted"):
                self.told.preempted += 1

    def _take_away(self, worker: int, journal: float, away: float, why: str) -> bool:
        """End what a worker does; tell whether it did anything."""
        if worker in self.idle:
            self.idle.remove(worker)
        elif worker not in self.busy:
            return False  # it is away already
        running = self.busy.get(worker)
        if running is not None:
            shard, since, speed = self._end(worker)
            spent = self.now - since
            kept = max(spent - journal, 0.0) * speed
            self.told.wasted += spent * speed - kept
            self.left[shard] -= kept
            self.schedule.failed(shard, why)
        self.round[worker] += 1
        self._arrange(away, "back", worker)
        return running is not None

    def _back(self, worker: int) -> None:
        self.idle.append(worker)

    def _end(self, worker: int) -> tuple[Shard, float, float]:
        self.round[worker] += 1
        return self.busy.pop(worker)

    def _life(self) -> float:
        return self.random.expovariate(1 / self.world.life) if self.world.life < math.inf else math.inf
