"""Images on their way to the model: decoded and corrupted in worker processes, checked before they are used."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from robustbench_kpca.corruptions import Cell, corrupt_one
from robustbench_kpca.corruptions.shared.storage import store
from robustbench_kpca.data.samples import Samples, to_pixels, to_tensor
from robustbench_kpca.data.scenes import Scenes
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.types import Images, Labels

Item = tuple[int, Tensor, int]
Pixels = NDArray[np.uint8]
Picture = tuple[int, Pixels, NDArray[np.int16]]


def corrupted(image: Pixels, cell: Cell, sample: str, storage: str = "none") -> Pixels:
    """Corrupt one image, and send it through a file where `storage` says so.

    Raises:
        BadInputError: it cannot be corrupted like this; the message names the sample.

    """
    try:
        image = corrupt_one(image, cell, sample)
    except BadInputError as error:
        raise BadInputError(f"image '{sample}': {error}") from None
    return store(image) if storage == "jpeg-q85" else image


class _Fetch(Dataset[Item | BadInputError]):
    def __init__(self, samples: Samples, indices: Sequence[int], cell: Cell | None, storage: str) -> None:
        self.samples, self.indices, self.cell, self.storage = samples, indices, cell, storage

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Item | BadInputError:
        try:
            return self._item(self.indices[position])
        except BadInputError as error:  # raised in a worker it would arrive with the worker's whole trace
            return error

    def _item(self, index: int) -> Item:
        image = self.samples.image(index)
        if isinstance(image, Tensor):
            check_images(image[None])
        if self.cell is not None:
            image = corrupted(to_pixels(image), self.cell, self.samples.ids[index], self.storage)
        return index, to_tensor(image), self.samples.labels[index]


def batches(
    samples: Samples,
    indices: Sequence[int],
    *,
    batch_size: int,
    workers: int = 0,
    cell: Cell | None = None,
    storage: str = "none",
) -> Iterator[tuple[list[int], Images, Labels]]:
    """Yield (indices, images in [0, 1], labels), corrupted where `cell` says how; the same bytes for any `workers`.

    Raises:
        BadInputError: images that are not finite, not float, or outside [0, 1].

    """
    loader = DataLoader(
        _Fetch(samples, indices, cell, storage),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=_collate,
        generator=torch.Generator(),  # else the loader draws from the global one
    )
    for batch in loader:
        if isinstance(batch, BadInputError):
            raise batch
        yield batch


def _collate(items: list[Item | BadInputError]) -> tuple[list[int], Images, Labels] | BadInputError:
    good: list[Item] = []
    for item in items:
        if isinstance(item, BadInputError):
            return item
        good.append(item)
    index, images, labels = zip(*good, strict=True)
    if len({image.shape for image in images}) > 1:
        return BadInputError("images of different sizes", expected="one size")
    return list(index), torch.stack(images), torch.tensor(labels)


class _FetchScene(Dataset[Picture | BadInputError]):
    def __init__(self, scenes: Scenes, indices: Sequence[int], cell: Cell | None, storage: str) -> None:
        self.scenes, self.indices, self.cell, self.storage = scenes, indices, cell, storage

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Picture | BadInputError:
        index = self.indices[position]
        try:
            image, mask = self.scenes.image(index), self.scenes.mask(index)
            if mask.shape != image.shape[:2]:
                name = self.scenes.ids[index]
                return BadInputError(
                    f"the mask of '{name}' is {mask.shape}", expected=f"{image.shape[:2]}, as its image"
                )
            if self.cell is not None:
                image = corrupted(image, self.cell, self.scenes.ids[index], self.storage)
        except BadInputError as error:  # as above
            return error
        return index, image, mask


def pictures(
    scenes: Scenes, indices: Sequence[int], *, workers: int = 0, cell: Cell | None = None, storage: str = "none"
) -> Iterator[Picture]:
    """Yield (index, image, mask) one by one, corrupted at full resolution where `cell` says how.

    Raises:
        BadInputError: a scene that cannot be used.

    """
    loader = DataLoader(
        _FetchScene(scenes, indices, cell, storage),
        batch_size=1,
        num_workers=workers,
        collate_fn=_only,
        generator=torch.Generator(),
    )
    for picture in loader:
        if isinstance(picture, BadInputError):
            raise picture
        yield picture


def _only(items: list[Picture | BadInputError]) -> Picture | BadInputError:
    return items[0]


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
