"""The engine `ray`: workers are actors of a Ray cluster, on any of its machines.

Calls, answers and the news that a worker or its machine is gone travel through Ray. Work is put into its object store
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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from robustbench_kpca._core.errors import BadInputError, EvaluationError, LostError, reason_of
from robustbench_kpca.evaluation.pool import Call, Pool, Worker
from robustbench_kpca.evaluation.shards import Shard
from robustbench_kpca.evaluation.worker import Answer, StoppableJournal, make

PATIENCE = 600.0
"""Seconds without any worker, such as after the last machine is gone, after which the run ends."""
PULSE = 2.0
"""Seconds between two questions to a worker how far it is."""


class RayCluster(Pool):
    """Actors of one CPU each, and one GPU where a CUDA device is asked for.

    Args:
        count: the most actors at once; None: one a CPU or GPU of the cluster.
        address: of a cluster, "auto" for that of this machine; "": where RAY_ADDRESS leads, else a cluster on this
            machine that is started for the run.
        on_gpu: whether each worker needs a GPU.
    """

    same_machine = False

    def __init__(self, count: int | None, address: str, *, on_gpu: bool) -> None:
        super().__init__(count or 0)
        self.address, self.on_gpu = address or os.environ.get("RAY_ADDRESS", ""), on_gpu
        self.ray = _ray()
        self.ours = False
        self.stored: tuple[bytes, Any] = (b"", None)
        self.storing = threading.Lock()
        self.seen = time.monotonic()
        try:
            with _signals_kept(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.ours = not self.ray.is_initialized()
                if self.ours:
                    self._connect()
            at_hand = int(self.ray.cluster_resources().get("GPU" if on_gpu else "CPU", 0))
            if not self.count and not at_hand:
                raise BadInputError(
                    f"the Ray cluster has no {'GPU' if on_gpu else 'CPU'}", fix="say how many with --processes"
                )
        except BaseException:
            self.close()
            raise
        self.count = self.count or at_hand
        self.most_lost = 3 + self.count  # the machine of several may go while they start

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
                expected="ray, ray:auto or ray:HOST:PORT",
                fix="start one with: ray start --head",
            ) from None

    def start(self, rank: int) -> "Actor":  # noqa: ARG002
        """Ask for an actor; Ray starts it where there is room, or later."""
        kind = self.ray.remote(num_cpus=1, num_gpus=int(self.on_gpu), concurrency_groups={"orders": 1})(Maker)
        return Actor(self, kind.remote())

    def put(self, work: bytes) -> Any:
        """Put work into the object store, unless it is there.

        Raises:
            EvaluationError: it has no room there.
        """
        with self.storing:
            if self.stored[0] is not work:
                try:
                    self.stored = work, self.ray.put(work)
                except self.ray.exceptions.RayError as error:
                    raise EvaluationError(
                        f"the object store of Ray has no room for {len(work):,} bytes of data and model "
                        f"({reason_of(error)})",
                        fix="start Ray with a larger --object-store-memory, or name the model and the folder of the "
                        "data",
                    ) from None
            return self.stored[1]

    def require_any(self) -> None:
        """Refuse to wait any longer for a first worker, or a new one where all are gone."""
        if any(worker.pid for worker in list(self.workers.values())):
            self.seen = time.monotonic()
        elif time.monotonic() - self.seen > PATIENCE:
            raise EvaluationError(
                f"no worker in the Ray cluster for {PATIENCE:.0f} s",
                expected=f"a machine with a free {'GPU' if self.on_gpu else 'CPU'}",
                fix="finished shards are kept: give the same command again",
            )

    def close(self) -> None:
        """End all actors, and the cluster if it was started for the run."""
        if self.ray.is_initialized():
            super().close()
            if self.ours:
                self.ray.shutdown()


class Actor(Worker):
    """A `Maker` in the cluster, called by its handle."""

    def __init__(self, cluster: RayCluster, handle: Any) -> None:
        self.cluster, self.ray, self.handle = cluster, cluster.ray, handle

    def ready(self) -> None:
        """Wait until Ray has started it, while there is hope."""
        answer = self.handle.ready.remote()
        while not self.ray.wait([answer], num_returns=1, timeout=1)[0]:
            self.cluster.require_any()
            if self.cluster.closed:
                raise LostError("is not needed any more")
        self.host, self.pid = self._of(answer)

    def make(self, call: Call) -> Answer:
        """Ask for the answer, and how far it is until that comes."""
        answer, pulse = self.handle.make.remote([self.cluster.put(call.work)], call.shard), None
        while not self.ray.wait([answer], num_returns=1, timeout=PULSE)[0]:
            pulse = pulse or self.handle.told.options(concurrency_group="orders").remote()
            if self.ray.wait([pulse], num_returns=1, timeout=0)[0]:
                call.line(*self._of(pulse))
                pulse = None
        made: Answer = self._of(answer)
        return made

    def _of(self, answer: Any) -> Any:
        try:
            return self.ray.get(answer)
        except self.ray.exceptions.RayError as error:
            self.pid = 0
            raise LostError(f"was lost ({_why(error)})") from None

    def stop(self) -> None:
        """Call what has a thread of its own there."""
        self.handle.stop.options(concurrency_group="orders").remote()

    def kill(self) -> None:
        """End the actor."""
        self.pid = 0
        self.ray.kill(self.handle)

    def close(self) -> None:
        """End the actor."""
        self.kill()


class Maker:
    """An actor. `told` and `stop` have a thread of their own: they answer while `make` works."""

    def __init__(self) -> None:
        self.rows = (0, 0)

    def ready(self) -> tuple[str, int]:
        """Return its machine and the number of the process."""
        return socket.gethostname(), os.getpid()

    def make(self, work: list[Any], shard: Shard) -> Answer:
        """Make a shard; `work` holds the reference of the pickled work."""
        import ray

        self.rows = (0, 0)
        return make(ray.get(work[0]), shard, self._tell)

    def _tell(self, done: int, total: int, /, **news: Any) -> None:  # noqa: ARG002 (the first process adds up)
        self.rows = (done, total)

    def told(self) -> tuple[int, int]:
        """Return the number of rows of this shard that are done, and of all."""
        return self.rows

    def stop(self) -> None:
        """Write the journal at the next batch, and end."""
        StoppableJournal.stopping = True


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
