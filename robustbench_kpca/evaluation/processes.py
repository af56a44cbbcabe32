"""The engine `processes`: several processes of this machine."""

import itertools
import multiprocessing
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from robustbench_kpca.evaluation.backend import Task
from robustbench_kpca.evaluation.bench import GRACE
from robustbench_kpca.evaluation.sharded import THREADS, Sharded, Worker
from robustbench_kpca.evaluation.worker import serve

START = "spawn"


@dataclass(eq=False)
class Piped(Worker):
    """A worker at the other end of a pipe.

    Attributes:
        pipe: of orders and answers.
        work: what it was told last.
        process: None where torchrun started it.
        rank: its place among the workers, from 0, which says which GPU it uses; under torchrun its rank.

    """

    pipe: Any = None
    work: bytes | None = None
    process: BaseProcess | None = None
    rank: int = 0


class Processes(Sharded[Piped]):
    """A `Backend`: so many processes, one thread each. They start when they are first needed, and end with `with`."""

    def start(self) -> Piped:
        """Start a process in the first place that is free, so that one for a lost process uses the GPU of that."""
        taken = {worker.rank for worker in self.workers}
        rank = next(place for place in itertools.count() if place not in taken)
        context: Any = multiprocessing.get_context(START)
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, rank, THREADS), name=f"evaluation-{rank}")
        with _without_interrupts():
            process.start()
        theirs.close()
        return Piped(pipe=ours, process=process, rank=rank)

    def order(self, worker: Piped, work: bytes, task: Task) -> None:
        """Send a task, and before it the work it is of, if that is new."""
        if worker.work is not work:
            worker.pipe.send(("work", work))
            worker.work = work
        worker.pipe.send(("shard", task))

    def news(self, seconds: float) -> Iterable[tuple[Piped, str, Any]]:
        """Return one message of every worker that sent any."""
        ready = wait([worker.pipe for worker in self.workers], seconds)
        return [(worker, *_message(worker)) for worker in list(self.workers) if worker.pipe in ready]

    def kill(self, worker: Piped) -> None:
        """End a process; one that was started elsewhere is out of reach."""
        if worker.process is not None:
            worker.process.kill()
            worker.process.join(GRACE)  # one that waits for a disk ends later
            worker.pipe.close()

    def stop(self) -> None:
        """End all processes."""
        for worker in self.workers:
            if worker.process is not None and (worker.shard is not None or not worker.ready):
                worker.process.terminate()
            worker.pipe.close()
        until = time.monotonic() + GRACE
        for process in [worker.process for worker in self.workers if worker.process is not None]:
            process.join(max(until - time.monotonic(), 0.1))
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while a process starts. The process inherits this: it must not end with a traceback of its own.

    What a terminal sends, it sends to all processes; the first one ends the others.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would let interrupts through again when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _message(worker: Piped) -> tuple[str, Any]:
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, OSError):
        return "lost", _how(worker.process)
    return kind, content


def _how(process: BaseProcess | None) -> str:
    """Say how a process ended."""
    if process is None:
        return "is gone"
    process.join(GRACE)
    if process.is_alive():
        process.kill()
        process.join(GRACE)
        return "closed its pipe and did not end"
    code = process.exitcode
    return f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with code {code}"
