"""Load samples in order: in this process, or in as many worker processes as the model needs in order not to wait."""

import logging
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from robustbench_kpca._core.errors import BadInputError, reason_of

Item = TypeVar("Item")
Batch = TypeVar("Batch")


_LOG = logging.getLogger("robustbench_kpca")
_sharing = [1]


def share_cores(processes: int) -> None:
    """Say that so many processes like this one evaluate at once."""
    _sharing[:] = [processes]


def cores_here() -> int:
    """Return the number of cores that this process may use; of processes that evaluate at once each has its share."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores // _sharing[0], 1)


class Seconds(NamedTuple):
    """What a batch takes: on the clock, and of all cores together."""

    clock: float
    cores: float


_WORTH_SECONDS, _WORTH_SHARE = 5.0, 0.05
"""What workers must save of the time that is left: their start takes about a second, and rates are measured roughly."""
_SPARE = 1.25
"""Workers in place of each that is needed, because a core is slower while its neighbours work, too."""


def workers_for(left: int, reading: Seconds, working: Seconds, cores: int, most: int) -> int:
    """Return how many processes should read the batches that are left, while the model runs.

    With workers a batch takes as long as the model, or as all the work on all cores. The workers are as many as make
    the reading no slower than that. There are none where they would save little: where the model is the limit, where
    few batches are left, or where the model itself uses all cores.

    Args:
        left: number of batches.
        reading: what a batch takes to be read in this process.
        working: what the model takes for a batch.
        cores: number of cores for model and workers.
        most: the most workers that there may be.
    """
    best = max(working.clock, (reading.cores + working.cores) / cores)
    alone, now = max(reading), reading.clock + working.clock  # a worker has one thread
    count = min(math.ceil(_SPARE * alone / best) if best > 0 else 0, most)
    saved = left * (now - max(best, alone / count)) if count else 0.0
    return count if saved > max(_WORTH_SECONDS, _WORTH_SHARE * left * now) else 0


class _Fetch(Dataset[Item | BadInputError], Generic[Item]):
    def __init__(self, fetch: Callable[[int], Item], indices: Sequence[int]) -> None:
        self.fetch, self.indices = fetch, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Item | BadInputError:
        try:
            return self.fetch(self.indices[position])
        except BadInputError as error:  # an exception from a worker would contain the worker's whole traceback
            return error


class _Collate(Generic[Item, Batch]):
    def __init__(self, collate: Callable[[list[Item]], Batch]) -> None:
        self.collate = collate

    def __call__(self, items: list[Item | BadInputError]) -> Batch | BadInputError:
        good: list[Item] = []
        for item in items:
            if isinstance(item, BadInputError):
                return item
            good.append(item)
        try:
            return self.collate(good)
        except BadInputError as error:
            return error


def in_batches(
    fetch: Callable[[int], Item],
    collate: Callable[[list[Item]], Batch],
    indices: Sequence[int],
    *,
    batch_size: int,
    workers: int | None = 0,
) -> Iterator[Batch]:
    """Yield batches of `batch_size` samples; the result does not depend on the number of workers.

    If a worker is lost, this process reads what is left.

    Args:
        fetch: returns sample number i; with workers it must be picklable, and so must `collate`.
        collate: builds a batch from a list of samples.
        indices: numbers of the samples, in order.
        batch_size: samples per batch; the last batch may have fewer.
        workers: number of worker processes; 0 loads in this process; None: see `workers_for`, by what the batches
            after the first have taken.

    Raises:
        BadInputError: raised by `fetch` or `collate`.
    """
    reading, working = np.zeros(2), np.zeros(2)
    number_of_batches = math.ceil(len(indices) / batch_size)
    count, most = workers or 0, 0

    def batches_from(number: int) -> Iterator[Batch | BadInputError]:
        return _batches(fetch, collate, indices[number * batch_size :], batch_size, count)

    batches = batches_from(0)
    for number in range(number_of_batches):
        if workers is None and count == 0 and number > 1:
            read_mean, work_mean = (Seconds(*(spent / (number - 1))) for spent in (reading, working))
            if count := workers_for(number_of_batches - number, read_mean, work_mean, cores_here(), most):
                batches = batches_from(number)
        began = _now()
        try:
            batch = next(batches)
        except RuntimeError as error:
            if not (count and "DataLoader worker" in reason_of(error)):
                raise
            _LOG.warning("a process that loads samples is lost; this process loads the rest")
            workers = count = 0
            batches = batches_from(number)
            batch = next(batches)
        if isinstance(batch, BadInputError):
            raise batch
        read = _now()
        yield batch
        if number:  # the first batch also warms up reader and model
            reading, working = reading + read - began, working + _now() - read
        most = most or _room(batch)


def _now() -> np.ndarray:
    """Return the time of the clock, and what this process has used of all cores."""
    return np.array([time.perf_counter(), time.process_time()])


def _batches(
    fetch: Callable[[int], Item],
    collate: Callable[[list[Item]], Batch],
    indices: Sequence[int],
    batch_size: int,
    workers: int,
) -> Iterator[Batch | BadInputError]:
    loader = DataLoader(
        _Fetch(fetch, indices),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=_Collate(collate),
        generator=torch.Generator(),  # without it the loader would use the global generator
    )
    before, in_main = signal.getsignal(signal.SIGCHLD), threading.current_thread() is threading.main_thread()
    batches: Iterator[Batch | BadInputError] = iter(loader)
    if in_main:
        signal.signal(signal.SIGCHLD, before)  # torch's would raise wherever the model is just then
    return batches


_PREFETCHED = 2
"""Batches that lie ready for each worker of a DataLoader."""


_CROWDED = 1.5
"""Processes that run or wait, for each core of the machine, above which workers take what they save from each other."""


def _room(batch: object) -> int:
    """Return the most workers: cores, unless others use them all, and batches that the shared memory has room for."""
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > _CROWDED * (os.cpu_count() or 1):
        return 0
    shared = Path("/dev/shm")  # noqa: S108 (Linux has its shared memory there)
    tensors = [part for part in batch if isinstance(part, Tensor)] if isinstance(batch, tuple | list) else []
    size = sum(tensor.nbytes for tensor in tensors)
    if not (shared.is_dir() and size):
        return cores_here()
    return min(cores_here(), int(shutil.disk_usage(shared).free / 2 // (_PREFETCHED * size)))
