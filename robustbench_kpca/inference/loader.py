"""Samples on their way to the model: fetched in worker processes, in order, and checked before they are used."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from robustbench_kpca.errors import BadInputError

Item = TypeVar("Item")
Batch = TypeVar("Batch")


class _Fetch(Dataset[Item | BadInputError], Generic[Item]):
    def __init__(self, fetch: Callable[[int], Item], indices: Sequence[int]) -> None:
        self.fetch, self.indices = fetch, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Item | BadInputError:
        try:
            return self.fetch(self.indices[position])
        except BadInputError as error:  # raised in a worker it would arrive with the worker's whole trace
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
    """Yield what `collate` makes of `batch_size` fetched samples at a time; the same for any number of workers.

    Args:
        fetch: makes sample number i; with workers it must be picklable, and so must `collate`.
        collate: makes a batch of samples.
        indices: numbers of the samples, in order.
        batch_size: samples in a batch; the last one may have fewer.
        workers: processes that fetch; 0 fetches in this one.

    Raises:
        BadInputError: what `fetch` or `collate` raised.

    """
    loader = DataLoader(
        _Fetch(fetch, indices),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=_Collate(collate),
        generator=torch.Generator(),  # else the loader draws from the global one
    )
    for batch in loader:
        if isinstance(batch, BadInputError):
            raise batch
        yield batch


def check_images(images: Tensor) -> None:
    """Refuse what is not a float batch (batch, channels, height, width) of finite values in [0, 1]."""
    if images.ndim != 4 or images.dtype not in (torch.float32, torch.float64):
        raise BadInputError(
            f"images of dtype {images.dtype} and shape {tuple(images.shape)}",
            expected="float32 or float64 of shape (batch, channels, height, width) in [0, 1]",
        )
    if not torch.isfinite(images).all():
        raise BadInputError("images hold NaN or infinite values", expected="values in [0, 1]")
    low, high = float(images.min()), float(images.max())
    if low < 0 or high > 1:
        raise BadInputError(
            f"images range from {low:.3g} to {high:.3g}",
            expected="values in [0, 1]",
            fix="divide uint8 by 255, and let the model normalise (mean and std belong inside it)",
        )
