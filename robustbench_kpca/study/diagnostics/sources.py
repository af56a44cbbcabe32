"""Data for a diagnosis: images, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from robustbench_kpca.data.samples import Samples, to_tensor
from robustbench_kpca.records.spec import DataInfo
from robustbench_kpca.types import Images


@dataclass(frozen=True)
class Block:
    """Images in [0, 1] for one pass, and their ids."""

    images: Images
    ids: tuple[str, ...]


@dataclass(frozen=True)
class ImageSource:
    """Images, loaded block by block; it can be read more than once."""

    samples: Samples

    def info(self) -> DataInfo:
        """Return the identity of the images."""
        s = self.samples
        return DataInfo(
            name=s.name,
            split=s.split,
            n=len(s),
            classes=s.classes,
            digest=s.digest(),
            task=s.task,
            resized=s.resized or None,
        )

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield blocks of at most `size` images."""
        for first in range(0, len(self.samples), size):
            numbers = range(first, min(first + size, len(self.samples)))
            images = torch.stack([to_tensor(self.samples.image(number)) for number in numbers])
            yield Block(images, tuple(self.samples.ids[number] for number in numbers))
