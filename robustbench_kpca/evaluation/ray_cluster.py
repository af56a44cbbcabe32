"""The engine `ray`: shards are tasks of a Ray cluster, on any of its machines.

Ray finds a machine for each task, and says which were lost with theirs. Work is put into its object store once. A task
returns the content of a shard's file, so its machine need not see the folder of the records; where it does, the task
also keeps a journal there, and a lost shard goes on from that.
"""

import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from robustbench_kpca._core.errors import BadInputError, EvaluationError, LostError, install_extra, reason_of
from robustbench_kpca.evaluation.sharded import Sharded
from robustbench_kpca.evaluation.worker import Answer, make
from robustbench_kpca.records.shards import Shard

PATIENCE = 600.0
"""Seconds without any CPU or GPU, such as after the last machine is gone, after which the run ends."""


class RayCluster(Sharded):
    """Tasks of one CPU each, and one GPU where a CUDA device is asked for.

    Args:
        count: the most tasks at once; None: one a CPU or GPU of the cluster.
        address: of a cluster, "auto" for that of this machine; "": where RAY_ADDRESS leads, else a cluster on this
            machine that is started for the run.
        on_gpu: whether each task needs a GPU.
    """

    same_machine = False

    def __init__(self, count: int | None, address: str, *, on_gpu: bool) -> None:
        self.needed, self.ray, self.started = "GPU" if on_gpu else "CPU", _ray(), False
        self.stored: tuple[bytes, Any] = b"", None
        self.tasks: set[Any] = set()
        self.last_sign = time.monotonic()
        try:
            with _signals_kept(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if not self.ray.is_initialized():
                    self._connect(count, address or os.environ.get("RAY_ADDRESS", ""))
            if not count and not self._present():
                raise BadInputError(f"the Ray cluster has no {self.needed}", fix="say how many with --processes")
        except BaseException:
            self.close()
            raise
        self.count = count or self._present()
        how: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(on_gpu), "max_retries": 0}
        self.task = self.ray.remote(**how, max_calls=0)(_make)  # a process that has made a shard keeps the model

    def _connect(self, count: int | None, address: str) -> None:
        self.started = True
        quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        try:
            if address and address != "local":
                del quiet["include_dashboard"]
                self.ray.init(address=address, **quiet)
            else:
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start sends nothing
                self.ray.init(address="local", num_cpus=count, **quiet)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise BadInputError(
                f"no Ray cluster at '{address or 'local'}' ({reason_of(error)})",
                expected="ray, ray:auto or ray:HOST:PORT",
                fix="start one with: ray start --head",
            ) from None

    def _present(self) -> int:
        return int(self.ray.cluster_resources().get(self.needed, 0))

    def submit(self, work: bytes, shard: Shard) -> Future[Answer]:
        """Ask for a task; Ray starts it where there is room, or later."""
        reference, answer = self.task.remote([self._put(work)], shard), Future[Answer]()
        self.tasks.add(reference)

        def take(future: Future[Answer]) -> None:
            self.tasks.discard(reference)
            if (error := future.exception()) is None:
                answer.set_result(future.result())
            else:
                answer.set_exception(LostError(f"was lost ({_why(error)})"))

        reference.future().add_done_callback(take)
        return answer

    def _put(self, work: bytes) -> Any:
        """Put work into the object store, unless it is there."""
        if self.stored[0] is not work:
            try:
                self.stored = work, self.ray.put(work)
            except self.ray.exceptions.RayError as error:
                raise EvaluationError(
                    f"the object store of Ray has no room for {len(work):,} bytes of data and model "
                    f"({reason_of(error)})",
                    fix="start Ray with a larger --object-store-memory, or name the model and the folder of the data",
                ) from None
        return self.stored[1]

    def require_hope(self) -> None:
        """Refuse to wait any longer where no machine of the cluster has what a task needs."""
        if self._present():
            self.last_sign = time.monotonic()
        elif time.monotonic() - self.last_sign > PATIENCE:
            raise EvaluationError(
                f"no {self.needed} in the Ray cluster for {PATIENCE:.0f} s",
                expected="a machine",
                fix="finished shards are kept: give the same command again",
            )

    def close(self) -> None:
        """End all tasks; leave the cluster, and end it if it was started for the run."""
        for reference in list(self.tasks):
            with suppress(Exception):
                self.ray.cancel(reference, force=True)
        if self.started and self.ray.is_initialized():
            self.ray.shutdown()


def _make(work: list[Any], shard: Shard) -> Answer:
    """Make a shard in a task; `work` holds the reference of the pickled work, which stays in the object store."""
    import ray

    return make(ray.get(work[0]), shard)


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
            "executor 'ray' needs Ray", fix=f"{install_extra('ray')}, or leave the executor out"
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
}
"""What Ray calls the end of a worker."""


def _why(error: BaseException) -> str:
    """Say how a task ended, as Ray knows it."""
    kind = re.search(r"exit type: (\w+)", str(error))
    return _ENDS[kind[1]] if kind and kind[1] in _ENDS else reason_of(error)
