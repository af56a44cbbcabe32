"""Several workers, each a process of its own: one that is lost costs no more than the shard that it made.

A thread a worker starts it, waits until it is ready, and only then takes a shard. So no shard waits for a worker that
may never come, such as an actor of Ray for which there is no machine.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from typing import ClassVar, Self

from robustbench_kpca._core.errors import BenchmarkError, EvaluationError, LostError, reason_of
from robustbench_kpca._core.progress import Line
from robustbench_kpca.evaluation.shard_folder import Running, now
from robustbench_kpca.evaluation.shards import Shard
from robustbench_kpca.evaluation.worker import CRASHED, GRACE, Answer


class Worker(ABC):
    """A process that makes one shard after the other; one thread talks to it.

    Attributes:
        host: its machine.
        pid: number of the process there.
        busy: whether it makes a shard.
    """

    host = ""
    pid = 0
    busy = False

    @abstractmethod
    def ready(self) -> None:
        """Wait until it has loaded the package, and note host and pid.

        Raises:
            LostError: it is gone.
        """

    @abstractmethod
    def make(self, call: "Call") -> Answer:
        """Return the answer to a call, and tell the call meanwhile how many rows are done.

        Raises:
            LostError: it is gone.
            BenchmarkError: the call cannot be sent.
        """

    @abstractmethod
    def stop(self) -> None:
        """Let it write its journal at the next batch, and end."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""

    @abstractmethod
    def close(self) -> None:
        """Wait until it has ended; an idle one ends now."""


class Call(Future[Answer]):
    """What a pool was asked: to make a shard.

    Attributes:
        work: a pickled `worker.Work`.
        shard: the shard.
        worker: who makes it, once that is known.
        line: the rows that are done, and how many a second; a resumed shard begins with rows.
    """

    def __init__(self, work: bytes, shard: Shard) -> None:
        super().__init__()
        self.work, self.shard = work, shard
        self.line = Line("")
        self.worker: Worker | None = None

    def begin(self, worker: Worker) -> None:
        """Take note of who makes it."""
        self.line, self.since = Line(""), now()
        self.worker = worker

    def as_running(self, rows: int) -> Running:
        """Return what `rbk records status` shows of a call that was begun; `rows`: of the shard."""
        assert self.worker is not None
        done, speed = self.line.done, self.line.per_second
        return Running(self.worker.host, self.worker.pid, self.since, done, rows, per_second=speed)


class Pool(ABC):
    """Workers that start when shards need them, and end with the pool. A kind of pool says what `start` starts.

    Args:
        count: the most workers at once.
        most_lost: so many workers in a row that are lost before they are ready end the run.
    """

    same_machine: ClassVar[bool] = True
    """Whether the workers have the environment of this process without being asked."""

    def __init__(self, count: int, most_lost: int = 3) -> None:
        self.count, self.most_lost = count, most_lost
        self.calls: deque[Call] = deque()
        self.changed = threading.Condition()
        self.threads: list[threading.Thread] = []
        self.workers: dict[int, Worker] = {}
        self.idle = self.lost = 0
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def start(self, rank: int) -> Worker:
        """Start the worker in a place, from 0, which is that of a lost one before."""

    def submit(self, work: bytes, shard: Shard) -> Call:
        """Let a worker make a shard of pickled work."""
        call = Call(work, shard)
        with self.changed:
            self.calls.append(call)
            if self.idle < len(self.calls) and len(self.threads) < self.count:
                thread = threading.Thread(target=self._serve, args=(len(self.threads),), daemon=True)
                self.threads.append(thread)
                thread.start()
            self.changed.notify()
        return call

    def close(self) -> None:
        """End all workers: idle ones at once, busy ones after they have written their journals."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for worker in list(self.workers.values()):
            if worker.busy:
                worker.stop()
            elif not worker.pid:
                worker.kill()
        until = time.monotonic() + GRACE
        for thread in self.threads:
            thread.join(max(until - time.monotonic(), 0.1))
        for worker in list(self.workers.values()):
            worker.kill()

    def _serve(self, rank: int) -> None:
        """Do what the thread of a place does, until the pool is closed."""
        while self._wait_for_calls():
            worker = self.workers.get(rank) or self._begin(rank)
            call = None if worker is None else self._next()
            if worker is not None and call is not None and self._is_spoilt_by(worker, call):
                worker.kill()
                self._end(rank)
        self._end(rank)

    def _wait_for_calls(self) -> bool:
        """Wait until there is a call, and leave it where it is; False: there will be none."""
        with self.changed:
            self.idle += 1
            self.changed.wait_for(lambda: self.calls or self.closed)
            self.idle -= 1
            return not self.closed

    def _next(self) -> Call | None:
        """Return the next call; None if another worker has taken it."""
        with self.changed:
            return self.calls.popleft() if self.calls else None

    def _begin(self, rank: int) -> Worker | None:
        """Start a worker and wait until it is ready; None: it was lost before."""
        try:
            worker = self.workers[rank] = self.start(rank)
            if not self.closed:  # else `close` may not have seen it
                worker.ready()
                self.lost = 0
                return worker
        except LostError as lost:
            self.lost += 1
            if self.lost >= self.most_lost:
                self._refuse(
                    EvaluationError(
                        f"{self.lost} processes in a row could not start (the last one {lost})",
                        fix="choose fewer processes; in a script of your own, call evaluate below `if __name__ == "
                        '"__main__":`',
                    )
                )
        except Exception as error:  # noqa: BLE001 (nobody else would hear of it)
            if not isinstance(error, BenchmarkError):
                error = EvaluationError(f"no process can be started ({reason_of(error)})")
            self._refuse(error)
        if rank in self.workers:
            self.workers[rank].kill()
        self._end(rank)
        return None

    def _refuse(self, error: BenchmarkError) -> None:
        """Let all calls that wait fail."""
        with self.changed:
            while self.calls:
                self.calls.popleft().set_exception(error)

    def _is_spoilt_by(self, worker: Worker, call: Call) -> bool:
        """Let a worker make a call; tell whether the worker is lost, or crashed and might fail again."""
        call.begin(worker)
        worker.busy = True
        try:
            answer = worker.make(call)
        except Exception as error:  # noqa: BLE001 (whoever waits for the call hears of it)
            call.set_exception(error)
            return isinstance(error, LostError)
        finally:
            worker.busy = False
        call.set_result(answer)
        return answer[0] == CRASHED

    def _end(self, rank: int) -> None:
        worker = self.workers.pop(rank, None)
        if worker is not None:
            worker.close()
