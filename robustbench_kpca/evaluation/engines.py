"""The executors by name. Each makes the same outcomes, byte for byte.

An executor is one of `concurrent.futures`: ours, or one of Dask, mpi4py or the standard library that a caller gives.
"""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from types import FrameType

import torch

from robustbench_kpca._engine.inference.loader import cores_here
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.processes import Processes
from robustbench_kpca.evaluation.ray_cluster import RayCluster
from robustbench_kpca.evaluation.worker import THREADS

Engine = Executor | None
"""Who makes outcomes. None: this process, of several models at once; of a part of the work, some of the shards."""


@contextmanager
def engine_for(options: RunOptions) -> Iterator[Engine]:
    """Start the engine that the options name, and end it, unless it was given.

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
        elif isinstance(options.executor, Executor):
            yield options.executor
        elif kind == "processes":
            with Processes(options.processes or _of_this_machine(on_gpu=on_gpu)) as processes:
                yield processes
        else:
            with RayCluster(options.processes, address, on_gpu=on_gpu) as cluster:
                yield cluster


def _of_this_machine(*, on_gpu: bool) -> int:
    return torch.cuda.device_count() if on_gpu else cores_here()


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
