"""What every data set is: indexed uint8 or float images with labels and stable ids, and a digest of all three."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.types import Images, Labels

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Samples:
    """A labelled image set that can be indexed.

    `image(i)` returns uint8 (height, width, 3), or float (3, height, width) where the images never were 8-bit.
    `fingerprint(i)` names the content of image i (and how it was made) without decoding it where that is costly.
    """

    name: str
    split: str
    ids: Sequence[str]
    labels: Sequence[int]
    classes: int
    image: Callable[[int], Pixels | Tensor]
    fingerprint: Callable[[int], str]

    def __post_init__(self) -> None:
        if len(self.ids) == 0:
            raise BadInputError(f"data '{self.name}' ({self.split}) holds no images", fix="choose another split or folder")
        if len(set(self.ids)) != len(self.ids):
            raise BadInputError(f"data '{self.name}' has repeated sample ids", expected="unique ids")
        bad = next((label for label in self.labels if not 0 <= label < self.classes), None)
        if bad is not None:
            raise BadInputError(f"label {bad} in data '{self.name}'", expected=f"0 to {self.classes - 1}")

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: Sequence[int]) -> "Samples":
        """Keep the samples at `indices`, in that order."""
        chosen = list(indices)
        return replace(
            self,
            ids=[self.ids[i] for i in chosen],
            labels=[self.labels[i] for i in chosen],
            image=lambda i: self.image(chosen[i]),
            fingerprint=lambda i: self.fingerprint(chosen[i]),
        )

    def digest(self) -> str:
        """SHA-256 over ids, labels and contents, whatever the order."""
        rows = sorted(f"{self.ids[i]}\t{self.labels[i]}\t{self.fingerprint(i)}" for i in range(len(self)))
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def tensors(self) -> tuple[Images, Labels]:
        """All images in [0, 1] as float32 (batch, 3, height, width), and their labels."""
        images = torch.stack([to_tensor(self.image(i)) for i in range(len(self))])
        return images, torch.tensor(list(self.labels), dtype=torch.int64)


def to_tensor(image: Pixels | Tensor) -> Tensor:
    """uint8 (height, width, 3) to float32 (3, height, width) in [0, 1]; a float tensor stays as it is."""
    if isinstance(image, Tensor):
        return image
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).float() / 255


def content_hash(image: Pixels | Tensor) -> str:
    """Hash dtype, shape and values of one image."""
    array = image.numpy() if isinstance(image, Tensor) else image
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def from_arrays(images: Sequence[Pixels | Tensor], labels: Sequence[int], **named: object) -> Samples:
    """Samples held in memory; `named` are the remaining fields (name, split, ids, classes)."""
    return Samples(
        labels=[int(label) for label in labels],
        image=lambda i: images[i],
        fingerprint=lambda i: content_hash(images[i]),
        **named,  # type: ignore[arg-type]
    )
