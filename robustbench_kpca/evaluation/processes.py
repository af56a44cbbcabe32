"""Processes of this machine, and the engine `processes`: one thread each; one that is lost costs one attempt."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Generic, TypeVar

import torch

from robustbench_kpca._core.early_exit import end_without_threads, no_early_exit
from robustbench_kpca._core.errors import BenchmarkError, EvaluationError, LostError, reason_of
from robustbench_kpca._core.progress import Every, Line, Progress
from robustbench_kpca._engine.inference.journal import StoppableJournal
from robustbench_kpca.evaluation.sharded import Sharded
from robustbench_kpca.evaluation.worker import CRASHED, GRACE, Answer, make
from robustbench_kpca.records.shard_folder import Running, now
from robustbench_kpca.records.shards import Shard

START = "spawn"
_NEWS = 0.5  # seconds between two messages about progress
MOST_LOST = 3
"""The run ends where this many processes in a row end before they are ready."""
Piece = TypeVar("Piece")
"""What a process makes at a time, such as a shard."""
Make = Callable[[bytes, Any, Progress], Answer]
"""Makes a piece of a pickled work, in a process: a function that can be imported."""


class Process:
    """A process at the other end of a pipe. `work` is what it was sent last, which is large."""

    def __init__(self, rank: int, make: Make = make) -> None:
        context: Any = multiprocessing.get_context(START)
        self.pipe, remote_end = context.Pipe()
        self.process = context.Process(target=serve, args=(remote_end, rank, make), name=f"evaluation-{rank}")
        with _without_interrupts():
            self.process.start()
        remote_end.close()
        self.work = b""

    def ready(self) -> None:
        """Wait until it has loaded the package.

        Raises:
            LostError: it is gone.
        """
        self.host, self.pid = self._receive()

    def make(self, work: bytes, piece: Any, progress: Progress) -> Answer:
        """Send the piece, and the work unless it has that; listen until the answer comes.

        Raises:
            LostError: it is gone.
        """
        with suppress(OSError):  # the process is gone, and receiving tells how it ended
            self.pipe.send((None if work is self.work else work, piece))
        self.work = work
        while True:
            kind, content = self._receive()
            if kind != "progress":
                return kind, content
            progress(*content)

    def _receive(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise LostError(self.end(GRACE)) from None

    def stop(self) -> None:
        """Let it write its journal at the next batch, and end; an idle one ends at once."""
        self.process.terminate()

    def end(self, seconds: float) -> str:
        """Wait so long for its end, then kill it; return how it ended."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(GRACE)  # a process that waits for a disk ends later
            return "did not end by itself"
        code = self.process.exitcode
        return f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with code {code}"


class Pool(Generic[Piece]):
    """So many processes, which start when pieces need them. One in place k uses CUDA device k modulo their number."""

    def __init__(self, count: int, make: Make) -> None:
        self.count, self.make_in_process = count, make
        self.threads = ThreadPoolExecutor(count)  # one thread talks to each process that makes a piece
        self.free = list(range(count))[::-1]  # free places; the one that was used last is used first
        self.processes: dict[int, Process] = {}
        self.at_work: dict[Piece, tuple[Process, str, Line]] = {}
        self.lost = 0
        self.closed = False

    def submit(self, work: bytes, piece: Piece) -> Future[Answer]:
        """Let a process make a piece; one that is lost is a `LostError`."""
        return self.threads.submit(self._make, work, piece)

    def close(self) -> None:
        """End all processes: idle ones at once, the others after they have written their journals."""
        self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self.processes.values()):
            process.stop()
        until = time.monotonic() + GRACE
        for process in list(self.processes.values()):
            process.end(max(until - time.monotonic(), 0.1))
        self.threads.shutdown()

    def _make(self, work: bytes, piece: Piece) -> Answer:
        """Do what the thread of a piece does.

        Raises:
            LostError: the process is gone.
            EvaluationError: no process can be started.
        """
        rank, answer = self.free.pop(), None
        try:
            process = self.processes.get(rank) or self._start(rank)
            line = Line()
            self.at_work[piece] = process, now(), line
            answer = process.make(work, piece, line)
        finally:
            self.at_work.pop(piece, None)
            if answer is None or answer[0] == CRASHED:  # a process that has crashed might fail at all later pieces
                self._drop(rank)
            self.free.append(rank)
        return answer

    def _start(self, rank: int) -> Process:
        try:
            process = self.processes[rank] = Process(rank, self.make_in_process)
            if self.closed:  # `close` may not have seen it
                raise LostError("is not needed any more")
            process.ready()
        except LostError as lost:
            self.lost += 1
            if self.lost < MOST_LOST:
                raise
            raise EvaluationError(
                f"{self.lost} processes in a row could not start (the last one {lost})",
                fix='choose fewer processes; in a script of your own, call evaluate below `if __name__ == "__main__":`',
            ) from None
        except Exception as error:
            if isinstance(error, BenchmarkError):
                raise
            raise EvaluationError(f"no process can be started ({reason_of(error)})") from None
        self.lost = 0
        return process

    def _drop(self, rank: int) -> None:
        if (process := self.processes.pop(rank, None)) is not None:
            process.end(0)
            process.pipe.close()


class Processes(Pool[Shard], Sharded):
    """A pool that makes shards."""

    def __init__(self, count: int) -> None:
        super().__init__(count, make)

    def running(self) -> Mapping[Shard, Running]:
        """Return the shards that are made now, and which process makes each."""
        return {
            shard: Running(process.host, process.pid, since, line.done, line.total, per_second=line.per_second)
            for shard, (process, since, line) in list(self.at_work.items())
        }


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while a process starts. The process inherits this: it must not end with a traceback of its own.

    What a terminal sends, it sends to all processes; the first one ends the others.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # the tracker would let interrupts through again when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_IDLE = threading.Event()


def serve(pipe: Connection, rank: int, make: Make) -> None:
    """Make pieces until the pipe is closed; the first message is (machine, process number), see `Process`."""
    for name in {"SIGINT", "SIGHUP"} & set(signal.Signals.__members__):  # these reach all processes; the first decides
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_watch_parent, daemon=True).start()
    if torch.cuda.is_available() and torch.cuda.device_count() > 1:  # "cuda" is then another device in each process
        torch.cuda.set_device(rank % torch.cuda.device_count())
    last = b""
    with no_early_exit(), suppress(EOFError, OSError):  # the pipe is closed: there is nothing more to do
        pipe.send((socket.gethostname(), os.getpid()))
        while not StoppableJournal.stopping:
            _IDLE.set()
            work, piece = pipe.recv()
            _IDLE.clear()
            last = last if work is None else work
            pipe.send(make(last, piece, _teller(pipe)))
    end_without_threads(0)


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    StoppableJournal.stopping = True
    if _IDLE.is_set():
        raise EOFError  # as if the pipe were closed


def _teller(pipe: Connection) -> Callable[..., None]:
    """Return a `Progress` that sends the numbers of finished rows and of all, twice a second at most."""
    sends = Every(_NEWS)

    def tell(done: int, total: int, /, **news: Any) -> None:  # noqa: ARG001 (the first process adds up what is done)
        if sends.due():
            try:
                pipe.send(("progress", (done, total)))
            except OSError:  # the other process is gone
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
