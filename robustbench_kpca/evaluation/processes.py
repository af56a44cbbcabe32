"""The engine `processes`: several processes of this machine."""

import itertools
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from robustbench_kpca._core.early_exit import no_early_exit
from robustbench_kpca.evaluation.backend import Task
from robustbench_kpca.evaluation.sharded import THREADS, Sharded, Worker
from robustbench_kpca.evaluation.worker import GRACE, Hand, StoppableJournal

START = "spawn"
_NEWS = 0.5  # seconds between two messages about progress


@dataclass(eq=False, kw_only=True)
class Piped(Worker):
    """A worker at the other end of a pipe.

    Attributes:
        pipe: of orders and answers.
        process: the worker itself.
        rank: its place among the workers, from 0, which says which GPU it uses.
        work: what it was told last.

    """

    pipe: Any
    process: BaseProcess
    rank: int
    work: bytes | None = None


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
        """End a process."""
        worker.process.kill()
        worker.process.join(GRACE)  # one that waits for a disk ends later
        worker.pipe.close()

    def stop(self) -> None:
        """End all processes."""
        for worker in self.workers:
            if worker.shard is not None or not worker.ready:
                worker.process.terminate()
            worker.pipe.close()
        until = time.monotonic() + GRACE
        for process in [worker.process for worker in self.workers]:
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


def _how(process: BaseProcess) -> str:
    """Say how a process ended."""
    process.join(GRACE)
    if process.is_alive():
        process.kill()
        process.join(GRACE)
        return "closed its pipe and did not end"
    code = process.exitcode
    return f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with code {code}"


def serve(pipe: Connection, number: int, threads: int) -> None:
    """Take orders until the pipe is closed: ("work", bytes), then ("shard", Task) any number of times.

    Answers: ("ready", (machine, process id)) at first, ("progress", rows done), and those of `Hand`.
    """
    for name in {"SIGINT", "SIGHUP"} & set(signal.Signals.__members__):  # these reach all processes; the first decides
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: setattr(StoppableJournal, "stopping", True))
    threading.Thread(target=_watch_parent, daemon=True).start()
    torch.set_num_threads(threads)
    if torch.cuda.is_available() and torch.cuda.device_count() > 1:  # "cuda" is then another device in each process
        torch.cuda.set_device(number % torch.cuda.device_count())
    hand = Hand()
    with no_early_exit(), suppress(EOFError, OSError):  # the pipe is closed: there is nothing more to do
        pipe.send(("ready", (socket.gethostname(), os.getpid())))
        while not StoppableJournal.stopping:
            kind, content = pipe.recv()
            answer = hand.take_up(content) if kind == "work" else hand.make(content, _teller(pipe))
            if answer is not None:
                pipe.send(answer)


def _teller(pipe: Connection) -> Callable[..., None]:
    """Return a `Progress` that sends the number of finished rows, twice a second at most."""
    told = time.monotonic()

    def tell(done: int, total: int, /, **news: Any) -> None:  # noqa: ARG001 (the parent adds up what is done)
        nonlocal told
        if time.monotonic() - told >= _NEWS:
            told = time.monotonic()
            try:
                pipe.send(("progress", done))
            except OSError:  # nobody is there any more
                StoppableJournal.stopping = True

    return tell


def _watch_parent() -> None:
    """When the first process is gone, even killed, write the journal at the next batch and end."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        StoppableJournal.stopping = True
        time.sleep(GRACE)
        os._exit(1)
