"""The engines by name, and `Processes`: several processes of this machine, one thread each.

Every engine makes the same outcomes, byte for byte.
"""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch

from robustbench_kpca._core.early_exit import no_early_exit
from robustbench_kpca._core.errors import LostError
from robustbench_kpca._engine.inference.loader import cores_here
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.pool import Call, Pool, Worker
from robustbench_kpca.evaluation.ray_cluster import RayCluster
from robustbench_kpca.evaluation.worker import GRACE, THREADS, Answer, StoppableJournal, make

Engine = Pool | None
"""Who makes outcomes. None: this process, of several models at once; of a part of the work, some of the shards."""


@contextmanager
def engine_for(options: RunOptions) -> Iterator[Engine]:
    """Start the engine that the options name, and end it.

    Raises:
        BadInputError: the engine is not installed, or cannot be reached.
    """
    kind, address = options.engine
    on_gpu = (options.device or "").startswith("cuda")
    if options.part is None and kind == "serial":
        yield None
        return
    with _one_thread(), _terminated_like_interrupted():
        if options.part is not None:
            yield None
        elif kind == "processes":
            with Processes(options.processes or (torch.cuda.device_count() if on_gpu else cores_here())) as processes:
                yield processes
        else:
            with RayCluster(options.processes, address, on_gpu=on_gpu) as cluster:
                yield cluster


@contextmanager
def _one_thread() -> Iterator[None]:
    """Give this process the threads of a worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: the workers write their journals and end."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:  # somebody else listens
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise KeyboardInterrupt


START = "spawn"
_NEWS = 0.5  # seconds between two messages about progress


class Processes(Pool):
    """So many processes. A process in place k uses CUDA device k modulo their number."""

    def start(self, rank: int) -> "Process":
        """Start a process."""
        context: Any = multiprocessing.get_context(START)
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, rank), name=f"evaluation-{rank}")
        with _without_interrupts():
            process.start()
        theirs.close()
        return Process(ours, process)


class Process(Worker):
    """A process at the other end of a pipe; `work` is what was sent last, which is large."""

    def __init__(self, pipe: Any, process: BaseProcess) -> None:
        self.pipe, self.process, self.work = pipe, process, b""

    def ready(self) -> None:
        """Wait for its first message."""
        self.host, self.pid = self._heard()

    def make(self, call: Call) -> Answer:
        """Send the shard, and the work unless it has that; then listen until the answer comes."""
        with suppress(OSError):  # it is gone: we shall hear how
            self.pipe.send((None if call.work is self.work else call.work, call.shard))
        self.work = call.work
        while True:
            kind, content = self._heard()
            if kind != "progress":
                return kind, content
            call.line(*content)

    def _heard(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise LostError(_how(self.process)) from None

    def stop(self) -> None:
        """Send SIGTERM."""
        self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()

    def close(self) -> None:
        """Close the pipe, which ends an idle process, and wait."""
        self.pipe.close()
        _how(self.process)  # one that waits for a disk ends later


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


def _how(process: BaseProcess) -> str:
    """Say how a process ended."""
    process.join(GRACE)
    if process.is_alive():
        process.kill()
        process.join(GRACE)
        return "closed its pipe and did not end"
    code = process.exitcode
    return f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with code {code}"


def serve(pipe: Connection, rank: int) -> None:
    """Make shards until the pipe is closed; the first message is (machine, process number), see `Process`."""
    for name in {"SIGINT", "SIGHUP"} & set(signal.Signals.__members__):  # these reach all processes; the first decides
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: setattr(StoppableJournal, "stopping", True))
    threading.Thread(target=_watch_parent, daemon=True).start()
    if torch.cuda.is_available() and torch.cuda.device_count() > 1:  # "cuda" is then another device in each process
        torch.cuda.set_device(rank % torch.cuda.device_count())
    last = b""
    with no_early_exit(), suppress(EOFError, OSError):  # the pipe is closed: there is nothing more to do
        pipe.send((socket.gethostname(), os.getpid()))
        while not StoppableJournal.stopping:
            work, shard = pipe.recv()
            last = last if work is None else work
            pipe.send(make(last, shard, _teller(pipe)))


def _teller(pipe: Connection) -> Callable[..., None]:
    """Return a `Progress` that sends the numbers of finished rows and of all, twice a second at most."""
    sent = time.monotonic()

    def tell(done: int, total: int, /, **news: Any) -> None:  # noqa: ARG001 (the parent adds up what is done)
        nonlocal sent
        if time.monotonic() - sent >= _NEWS:
            sent = time.monotonic()
            try:
                pipe.send(("progress", (done, total)))
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
