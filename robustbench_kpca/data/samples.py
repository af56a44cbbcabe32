"""What every data set is: images with labels and stable ids, indexed, and a digest of all three."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.types import Images, Labels

Image: TypeAlias = NDArray[np.uint8] | Tensor
"""uint8 (height, width, 3), or float32 (channels, height, width) where the image never was 8-bit."""


class Samples(ABC):
    """An image set that can be indexed (and pickled, for the loader's workers).

    Attributes:
        classes: how many there are; 0 where the images are of no known class: then asking for `labels` is an error, so
            that nobody computes an accuracy by mistake.
        strata: one number an image, among which a `limit` is spread: the labels, where there are any.
        skipped: what was left out because it could not be read.
        expected: how many images the published set has, None where that is unknown or a part was asked for.
        known_classes: of a pair (see `Pair`), the classes of its known images; labels then say which images are of no
            known class, rather than of which class. None otherwise.

    Raises:
        BadInputError: no images, repeated ids, or a label outside 0 to `classes` - 1.

    """

    skipped: tuple[str, ...] = ()
    expected: int | None = None
    known_classes: tuple[int, ...] | None = None

    def __init__(self, name: str, split: str, ids: Sequence[str], labels: Sequence[int], classes: int) -> None:
        if not len(ids):
            raise BadInputError(f"data '{name}' ({split}) holds no images", fix="choose another split or folder")
        if len(labels) != len(ids) or len(set(ids)) != len(ids):
            raise BadInputError(
                f"data '{name}' has {len(ids)} ids, {len(set(ids))} of them different, {len(labels)} labels"
            )
        bad = next((label for label in labels if not 0 <= label < classes), None) if classes else None
        if bad is not None:
            raise BadInputError(f"label {bad} in data '{name}'", expected=f"0 to {max(classes, 1) - 1}")
        self.name, self.split, self.classes = name, split, classes
        self.ids, self.strata = list(ids), [int(label) for label in labels]
        self._digest: str | None = None

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

    @abstractmethod
    def image(self, index: int) -> Image:
        """Image number `index`."""

    @abstractmethod
    def fingerprint(self, index: int) -> str:
        """Name the content of an image and how it was made, without decoding it where that is costly."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: Sequence[int]) -> "Samples":
        """Keep the samples at `indices`, in that order."""
        return _Subset(self, indices)

    def digest(self) -> str:
        """SHA-256 over ids, labels and contents, whatever the order; computed once."""
        if self._digest is None:
            self._digest = self._compute_digest()
        return self._digest

    def _compute_digest(self) -> str:
        with ThreadPoolExecutor() as pool:
            prints = list(pool.map(self.fingerprint, range(len(self))))
        rows = sorted(f"{self.ids[i]}\t{self.strata[i]}\t{prints[i]}" for i in range(len(self)))
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def in_order(self) -> "Samples":
        """Sort by id (shorter ones first), the order in which outcomes are written."""
        order = sorted(range(len(self)), key=lambda i: (len(self.ids[i]), self.ids[i]))
        return self if order == list(range(len(self))) else self.take(order)

    def tensors(self) -> tuple[Images, Labels]:
        """All images in [0, 1] as float32 (batch, 3, height, width), and their labels."""
        images = torch.stack([to_tensor(self.image(i)) for i in range(len(self))])
        return images, torch.tensor(self.labels, dtype=torch.int64)


class _Subset(Samples):
    def __init__(self, whole: Samples, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, list(indices)
        ids, strata = [whole.ids[i] for i in indices], [whole.strata[i] for i in indices]
        super().__init__(whole.name, whole.split, ids, strata, whole.classes)
        self.skipped, self.known_classes = whole.skipped, whole.known_classes
        self.expected = whole.expected if len(self) == len(whole) else None

    def image(self, index: int) -> Image:
        return self.whole.image(self.indices[index])

    def fingerprint(self, index: int) -> str:
        return self.whole.fingerprint(self.indices[index])


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
        array = image.numpy() if isinstance(image, Tensor) else image
        return array_fingerprint(array)


def array_fingerprint(array: NDArray[Any]) -> str:
    """Hash of an array's type, shape and values."""
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


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
