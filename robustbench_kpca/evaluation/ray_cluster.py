"""The engine `ray`: workers are actors of a Ray cluster, on any of its machines.

Orders, answers and the news that a worker or its machine is gone travel through Ray. Work is put into its object store
once. A worker returns the content of a shard's file, so it need not see the folder of the records; where it does, it
also keeps a journal there, and a lost shard goes on from that.
"""

import os
import re
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from robustbench_kpca._core.errors import BadInputError, EvaluationError, reason_of
from robustbench_kpca.evaluation.backend import Task
from robustbench_kpca.evaluation.sharded import THREADS, Sharded, Worker
from robustbench_kpca.evaluation.worker import GRACE, Answer, Hand, StoppableJournal

PATIENCE = 600.0
"""Seconds without any worker, such as after the last machine is gone, after which the run ends."""
PULSE = 2.0
"""Seconds between two questions to a worker how far it is."""


class Maker:
    """A worker in a process of Ray. `told` and `stop` have a thread of their own: they answer while `make` works."""

    def __init__(self) -> None:
        self.hand = Hand()
        self.work: Any = None
        self.batches = self.done = 0

    def ready(self) -> list[Any]:
        """Return its machine and the number of the process."""
        return [socket.gethostname(), os.getpid()]

    def make(self, work: list[Any], task: Task) -> Answer | None:
        """Make a shard; `work` holds the reference of a pickled `Work`, which is fetched if it is new."""
        import ray

        torch.set_num_threads(THREADS)  # of this thread
        self.batches = self.done = 0
        if self.work != work:
            self.work = work
            refused = self.hand.take_up(ray.get(work[0]))
            if refused is not None:
                return refused
        return self.hand.make(task, self._tell)

    def _tell(self, done: int, total: int, /, **news: Any) -> None:  # noqa: ARG002 (the first process adds up)
        self.batches, self.done = self.batches + 1, done

    def told(self) -> tuple[int, int]:
        """Return the number of batches of this shard that are done, and of its rows."""
        return self.batches, self.done

    def stop(self) -> None:
        """Write the journal at the next batch, and end."""
        StoppableJournal.stopping = True


@dataclass(eq=False)
class Actor(Worker):
    """A `Maker` in the cluster.

    Attributes:
        handle: what its methods are called by.
        answer: a reference of what it will say next.
        pulse: a reference of how far it is, while it is asked that.
        asked: when it was.
        batches: of its shard that it had finished then.

    """

    handle: Any = None
    answer: Any = None
    pulse: Any = None
    asked: float = 0.0
    batches: int = 0


class RayCluster(Sharded[Actor]):
    """A `Backend`: actors of one CPU each, and one GPU where a CUDA device is asked for.

    Args:
        count: the most actors at once; None: one a CPU or GPU of the cluster.
        address: of a cluster, "auto" for that of this machine; "": where RAY_ADDRESS leads, else a cluster on this
            machine that is started for the run.
        on_gpu: whether each worker needs a GPU.

    """

    several_machines = True

    def __init__(self, count: int | None, address: str, *, on_gpu: bool) -> None:
        super().__init__(count or 0)
        self.address, self.on_gpu = address or os.environ.get("RAY_ADDRESS", ""), on_gpu
        self.ray = _ray()
        self.ours = False
        self.begun: tuple[bytes, Any] = (b"", None)
        self.seen = time.monotonic()

    def __enter__(self) -> "RayCluster":
        super().__enter__()
        try:
            with _signals_kept(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.ours = not self.ray.is_initialized()
                if self.ours:
                    self._connect()
            found = int(self.ray.cluster_resources().get("GPU" if self.on_gpu else "CPU", 0))
            if not self.count and not found:
                raise BadInputError(
                    f"the Ray cluster has no {'GPU' if self.on_gpu else 'CPU'}", fix="say how many with --processes"
                )
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        self.count = self.count or found
        self.most_lost = 3 + self.count  # the machine of several may go while they start
        return self

    def _connect(self) -> None:
        quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        try:
            if self.address and self.address != "local":
                del quiet["include_dashboard"]
                self.ray.init(address=self.address, **quiet)
            else:
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start sends nothing
                self.ray.init(address="local", num_cpus=self.count or None, **quiet)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise BadInputError(
                f"no Ray cluster at '{self.address or 'local'}' ({reason_of(error)})",
                expected="ray, ray:auto or ray:HOST:PORT", fix="start one with: ray start --head",
            ) from None  # fmt: skip

    def start(self) -> Actor:
        """Ask for an actor; Ray starts it where there is room, or later."""
        made = self.ray.remote(num_cpus=1, num_gpus=int(self.on_gpu), concurrency_groups={"orders": 1})(Maker)
        handle = made.remote()
        return Actor(handle=handle, answer=handle.ready.remote())

    def order(self, worker: Actor, work: bytes, task: Task) -> None:
        """Ask for a shard."""
        if self.begun[0] is not work:
            self.begun = work, self._stored(work)
        worker.answer = worker.handle.make.remote([self.begun[1]], task)
        worker.pulse, worker.asked, worker.batches = None, time.monotonic(), 0

    def _stored(self, work: bytes) -> Any:
        """Put work into the object store.

        Raises:
            EvaluationError: it has no room there.

        """
        try:
            return self.ray.put(work)
        except self.ray.exceptions.RayError as error:
            raise EvaluationError(
                f"the object store of Ray has no room for {len(work):,} bytes of data and model ({reason_of(error)})",
                fix="start Ray with a larger --object-store-memory, or name the model and the folder of the data",
            ) from None

    def news(self, seconds: float) -> Iterable[tuple[Actor, str, Any]]:
        """Return one message of every worker that sent any, or is gone.

        Raises:
            EvaluationError: there was no worker for `PATIENCE` seconds.

        """
        waiting = {worker.answer: worker for worker in self.workers if worker.answer is not None}
        if not waiting:
            time.sleep(seconds)
            return []
        pulses = self._pulses()
        every = [*waiting, *pulses]
        found, _ = self.ray.wait(every, num_returns=1, timeout=seconds)
        if found:
            found, _ = self.ray.wait(every, num_returns=len(every), timeout=0)
        if found or any(worker.ready for worker in self.workers):
            self.seen = time.monotonic()
        elif time.monotonic() - self.seen > PATIENCE:
            raise EvaluationError(
                f"no worker in the Ray cluster for {PATIENCE:.0f} s",
                expected=f"a machine with a free {'GPU' if self.on_gpu else 'CPU'}",
                fix="finished shards are kept: give the same command again",
            )
        news = [(waiting[one], *self._message(waiting[one])) for one in found if one in waiting]
        return [*(told for one in found if one in pulses if (told := self._told(pulses[one]))), *news]

    def _pulses(self) -> dict[Any, Actor]:
        """Ask the busy workers how far they are, now and then; return the open questions."""
        for worker in self.workers:
            if worker.shard is not None and worker.pulse is None and time.monotonic() - worker.asked >= PULSE:
                worker.pulse = worker.handle.told.options(concurrency_group="orders").remote()
                worker.asked = time.monotonic()
        return {worker.pulse: worker for worker in self.workers if worker.pulse is not None}

    def _told(self, worker: Actor) -> tuple[Actor, str, int] | None:
        """Return how far a worker is, if it has finished a batch since it was asked last."""
        pulse, worker.pulse = worker.pulse, None
        try:
            batches, done = self.ray.get(pulse)
        except self.ray.exceptions.RayError:  # its answer will say so, too
            return None
        if batches == worker.batches:
            return None
        worker.batches = batches
        return worker, "progress", done

    def _message(self, worker: Actor) -> tuple[str, Any]:
        answer, worker.answer = worker.answer, None
        try:
            said = self.ray.get(answer)
        except self.ray.exceptions.RayError as error:
            return "lost", f"was lost ({_why(error)})"
        return ("ready", said) if isinstance(said, list) else said

    def kill(self, worker: Actor) -> None:
        """End an actor."""
        self.ray.kill(worker.handle)

    def stop(self) -> None:
        """End all actors, and the cluster if it was started for the run."""
        if not self.ray.is_initialized():
            return
        busy = [worker for worker in self.workers if worker.shard is not None]
        for worker in busy:
            worker.handle.stop.options(concurrency_group="orders").remote()
        answers = [worker.answer for worker in busy if worker.answer is not None]
        if answers:
            self.ray.wait(answers, num_returns=len(answers), timeout=GRACE)
        for worker in self.workers:
            self.ray.kill(worker.handle)
        if self.ours:
            self.ray.shutdown()


def _ray() -> Any:
    """Return the module `ray`.

    Raises:
        BadInputError: it is not installed.

    """
    try:
        with _signals_kept():
            import ray
    except ImportError:
        raise BadInputError(
            "executor 'ray' needs Ray", fix="pip install 'robustbench-kpca[ray]', or leave the executor out"
        ) from None
    return ray


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep what happens at SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


_ENDS = {
    "SYSTEM_ERROR": "its process crashed",
    "USER_ERROR": "its code failed",
    "NODE_OUT_OF_MEMORY": "its machine ran out of memory",
    "NODE_DIED": "its machine is gone",
    "INTENDED_USER_EXIT": "it was told to end",
    "INTENDED_SYSTEM_EXIT": "Ray ended it",
}
"""What Ray calls the end of a worker."""


def _why(error: BaseException) -> str:
    """Say how a worker ended, as Ray knows it."""
    kind = re.search(r"exit type: (\w+)", str(error))
    return _ENDS[kind[1]] if kind and kind[1] in _ENDS else reason_of(error)
