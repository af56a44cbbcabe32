"""Load samples in order, in worker processes."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from robustbench_kpca._core.errors import BadInputError

Item = TypeVar("Item")
Batch = TypeVar("Batch")


_WORTH, _MOST = 512, 8


def cores_here() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(rows: int, generated: bool) -> int:
    """Return the default number of processes that load samples while the model runs.

    One a core that this process may use, at most 8, where at least 512 samples are corrupted or read from a stored
    grid; else 0, since starting a process takes longer than it saves.
    """
    if not generated or rows < _WORTH:
        return 0
    cores = cores_here()
    return min(cores, _MOST) if cores > 1 else 0


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
    workers: int = 0,
) -> Iterator[Batch]:
    """Yield batches of `batch_size` samples; the result does not depend on the number of workers.

    Args:
        fetch: returns sample number i; with workers it must be picklable, and so must `collate`.
        collate: builds a batch from a list of samples.
        indices: numbers of the samples, in order.
        batch_size: samples per batch; the last batch may have fewer.
        workers: number of worker processes; 0 loads in this process.

    Raises:
        BadInputError: raised by `fetch` or `collate`.
    """
    loader = DataLoader(
        _Fetch(fetch, indices),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=_Collate(collate),
        generator=torch.Generator(),  # without it the loader would use the global generator
    )
    for batch in loader:
        if isinstance(batch, BadInputError):
            raise batch
        yield batch
