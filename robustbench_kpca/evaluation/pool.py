"""An executor, as `concurrent.futures` has them, whose workers are processes: one that is lost costs one call.

A thread a worker starts it, waits until it is ready, and only then takes a call. So no call waits for a worker that may
never come. Of a running call it is known who makes it and how far that is, and it can be ended.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from typing import Any, ClassVar

from robustbench_kpca._core.errors import BenchmarkError, EvaluationError, LostError, reason_of
from robustbench_kpca._core.progress import Line
from robustbench_kpca.evaluation.shard_folder import Running, now
from robustbench_kpca.evaluation.worker import CRASHED, GRACE, LOST, REFUSED, Answer

TICK = 2.0
"""Most seconds of silence that one look adds. If this process itself was stopped for an hour, no worker was silent."""


class Worker(ABC):
    """A process that makes one call after the other; one thread talks to it.

    Attributes:
        host: its machine.
        pid: number of the process there.
        busy: whether it makes a call.
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
        """Return the answer to a call, and tell the call meanwhile how far it is.

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
    """A call of a pool: one worker's work on one shard.

    Attributes:
        what: the function and its arguments.
        worker: who makes it, once it runs.
        batches, rows: of it that are done; a resumed call begins with rows.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self, *what: Any) -> None:
        super().__init__()
        self.what = what
        self.worker: Worker | None = None
        self.batches = self.rows = self._seen = 0
        self._silent = 0.0

    def begin(self, worker: Worker) -> None:
        """Take note of who makes it."""
        self._line, self._since, self._looked = Line("", self.clock), now(), self.clock()
        self.worker = worker

    def silence(self, rows: int) -> float:
        """Look how far it is; return the seconds since a batch was finished, of which one look adds at most `TICK`."""
        before, self._looked = self._looked, self.clock()
        if self.batches == self._seen:
            self._silent += min(max(self._looked - before, 0.0), TICK)
        else:
            self._seen, self._silent = self.batches, 0.0
            self._line(self.rows, rows)
        return self._silent

    def as_running(self, rows: int) -> Running:
        """Return what `rbk records status` shows; `rows`: of the shard."""
        assert self.worker is not None
        worker, line = self.worker, self._line
        return Running(worker.host, worker.pid, self._since, done=line.done, rows=rows, per_second=line.per_second)

    def end(self, why: str) -> None:
        """Let the call fail, if it has not ended yet, and end the process that makes it."""
        with suppress(InvalidStateError):
            self.set_exception(LostError(why))
            if self.worker is not None:
                self.worker.kill()


class Pool(Executor):
    """Workers that start when calls need them, and end with `shutdown`. A kind of pool says what `start` starts.

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

    @abstractmethod
    def start(self, rank: int) -> Worker:
        """Start the worker in a place, from 0, which is that of a lost one before."""

    def submit(self, function: Any, /, *given: Any, **named: Any) -> Any:
        """Let a worker call a function; its keyword `progress` is filled in. Return a `Call`."""
        assert not named
        call = Call(function, *given)
        with self.changed:
            self.calls.append(call)
            if self.idle < len(self.calls) and len(self.threads) < self.count:
                thread = threading.Thread(target=self._serve, args=(len(self.threads),), daemon=True)
                self.threads.append(thread)
                thread.start()
            self.changed.notify()
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
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
        for thread in self.threads if wait else ():
            thread.join(max(until - time.monotonic(), 0.1))
        for worker in list(self.workers.values()):
            worker.kill()

    def refuse(self, error: BenchmarkError) -> None:
        """Let all calls that wait fail."""
        with self.changed:
            while self.calls:
                with suppress(InvalidStateError):  # it was cancelled
                    self.calls.popleft().set_exception(error)

    def _serve(self, rank: int) -> None:
        """Do what the thread of a worker does, until the pool is closed."""
        while self._work_waits():
            worker = self.workers.get(rank) or self._begin(rank)
            call = None if worker is None else self._next()
            if worker is None or call is None:
                continue
            worker.busy = True
            call.begin(worker)
            kind = self._make(worker, call)
            worker.busy = False
            if kind in {LOST, CRASHED}:  # all later work of a process that has crashed might fail, too
                worker.kill()
                self._end(rank)
        self._end(rank)

    def _work_waits(self) -> bool:
        """Wait for a call, and leave it where it is; False: there will be none."""
        with self.changed:
            self.idle += 1
            self.changed.wait_for(lambda: self.calls or self.closed)
            self.idle -= 1
            return not self.closed

    def _next(self) -> Call | None:
        with self.changed:
            call = self.calls.popleft() if self.calls else None
        return call if call is not None and call.set_running_or_notify_cancel() else None

    def _begin(self, rank: int) -> Worker | None:
        """Start a worker and wait until it is ready; None: it was lost before."""
        try:
            worker = self.workers[rank] = self.start(rank)
            if not self.closed:  # else `shutdown` may not have seen it
                worker.ready()
                self.lost = 0
                return worker
        except LostError as lost:
            self.lost += 1
            if self.lost >= self.most_lost:
                self.refuse(
                    EvaluationError(
                        f"{self.lost} processes in a row could not start (the last one {lost})",
                        fix="choose fewer processes; in a script of your own, call evaluate below `if __name__ == "
                        '"__main__":`',
                    )
                )
        except Exception as error:  # noqa: BLE001 (nobody else would hear of it)
            if not isinstance(error, BenchmarkError):
                error = EvaluationError(f"no process can be started ({reason_of(error)})")
            self.refuse(error)
        if rank in self.workers:
            self.workers[rank].kill()
        self._end(rank)
        return None

    def _make(self, worker: Worker, call: Call) -> str:
        """Let a worker make a call; return what came of it."""
        with suppress(InvalidStateError):  # it was ended
            try:
                answer = worker.make(call)
            except Exception as error:  # noqa: BLE001 (whoever waits for the call hears of it)
                call.set_exception(error)
                return LOST if isinstance(error, LostError) else REFUSED
            call.set_result(answer)
            return answer[0]
        return LOST

    def _end(self, rank: int) -> None:
        worker = self.workers.pop(rank, None)
        if worker is not None:
            worker.close()
