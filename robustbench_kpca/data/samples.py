"""Images with one label each, for classification."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca.data.base import Dataset, Image, Part, array_fingerprint
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.types import Images, Labels

__all__ = ["ArraySamples", "Image", "Samples", "array_fingerprint", "to_pixels", "to_tensor"]

Self = TypeVar("Self", bound="Samples")


class Samples(Dataset):
    """Images with labels.

    Args:
        name: of the set.
        split: part of the set.
        ids: one an image, all different.
        labels: one an image, 0 to `classes` - 1.
        classes: how many there are; 0 where the images are of no known class. Then asking for `labels` is an error, so
            that nobody computes an accuracy by mistake, and the numbers given only say how a `limit` is spread.

    Attributes:
        known_classes: of a pair (see `Pair`), the classes of its known images; labels then say which images are of no
            known class, rather than of which class. None otherwise.

    Raises:
        BadInputError: no images, repeated ids, or a label outside 0 to `classes` - 1.

    """

    task = "classification"
    known_classes: tuple[int, ...] | None = None

    def __init__(self, name: str, split: str, ids: Sequence[str], labels: Sequence[int], classes: int) -> None:
        super().__init__(name, split, ids, classes, labels)
        bad = next((label for label in labels if not 0 <= label < classes), None) if classes else None
        if bad is not None:
            raise BadInputError(f"label {bad} in data '{name}'", expected=f"0 to {max(classes, 1) - 1}")

    @property
    def labels(self) -> list[int]:
        """One class an image."""
        if not self.classes:
            raise BadInputError(
                f"data '{self.name}' has no labels: its images are of no class that a model knows",
                fix="use it as the unknown part of a pair, for out-of-distribution detection",
            )
        return self.strata

    @property
    def is_pair(self) -> bool:
        """Whether labels say which images are of no known class."""
        return self.known_classes is not None

    @property
    def known(self) -> int | None:
        """How many images of a pair are of known classes (label 0); None for other data."""
        return self.labels.count(0) if self.is_pair else None

    def take(self: Self, indices: Sequence[int]) -> Self:
        """Keep the samples at `indices`, in that order."""
        return cast("Self", _SamplesPart(self, indices))

    def digest_rows(self, prints: Sequence[str]) -> list[str]:
        """Return id, label and fingerprint of every image."""
        return sorted(f"{self.ids[i]}\t{self.strata[i]}\t{prints[i]}" for i in range(len(self)))

    def tensors(self) -> tuple[Images, Labels]:
        """All images in [0, 1] as float32 (batch, 3, height, width), and their labels."""
        images = torch.stack([to_tensor(self.image(i)) for i in range(len(self))])
        return images, torch.tensor(self.labels, dtype=torch.int64)


class _SamplesPart(Part, Samples):
    def __init__(self, whole: Samples, indices: Sequence[int]) -> None:
        super().__init__(whole, indices)
        self.known_classes = whole.known_classes


class ArraySamples(Samples):
    """Samples held in memory, as one array or tensor of images."""

    def __init__(
        self, images: Image, labels: Sequence[int], *, name: str, split: str, ids: Sequence[str], classes: int
    ) -> None:
        super().__init__(name, split, ids, labels, classes)
        self.images = images

    def image(self, index: int) -> Image:
        """Image number `index`."""
        return self.images[index]

    def fingerprint(self, index: int) -> str:
        """Hash of the values."""
        image = self.images[index]
        array: NDArray[Any] = image.numpy() if isinstance(image, Tensor) else image
        return array_fingerprint(array)


def to_tensor(image: Image) -> Tensor:
    """uint8 (height, width, 3) to float32 (3, height, width) in [0, 1]; a float tensor stays as it is."""
    if isinstance(image, Tensor):
        return image
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).float() / 255


def to_pixels(image: Image) -> NDArray[np.uint8]:
    """Return uint8 (height, width, 3); a float image in [0, 1] is rounded to the nearest of 256 levels."""
    if isinstance(image, Tensor):
        if len(image) != 3:
            raise BadInputError(f"images of {len(image)} channels to be corrupted", expected="3 channels, RGB")
        levels = (image.clamp(0, 1) * 255).round().to(torch.uint8)
        return levels.permute(1, 2, 0).contiguous().numpy()
    return image
