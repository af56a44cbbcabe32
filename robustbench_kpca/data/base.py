"""What every data set is: items with an image, an id and the content of both named by a digest."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca.errors import BadInputError

Image: TypeAlias = NDArray[np.uint8] | Tensor
"""uint8 (height, width, 3), or float32 (channels, height, width) where the image never was 8-bit."""

Self = TypeVar("Self", bound="Dataset")
"""A data set of the same kind: samples stay samples, scenes stay scenes."""


class Dataset(ABC):
    """A set of images that can be indexed, and pickled for the workers of a loader.

    Args:
        name: of the set.
        split: part of the set.
        ids: one an item, all different.
        classes: how many there are; 0 where no item is of a known class.
        strata: one number an item; `spread` takes its share of every number. By default all items count as one group.

    Attributes:
        task: what a model does with these images, such as `classification`. Every kind of data set sets its own.
        class_names: of the classes, in their order; None where they are not known.
        skipped: items that were left out because their files could not be used.
        expected: how many items the published set has; None where that is unknown, or a part was asked for.

    Raises:
        BadInputError: no items, repeated ids, or not one number an item.

    """

    task: ClassVar[str]
    class_names: tuple[str, ...] | None = None
    skipped: tuple[str, ...] = ()
    expected: int | None = None

    def __init__(
        self, name: str, split: str, ids: Sequence[str], classes: int, strata: Sequence[int] | None = None
    ) -> None:
        if not len(ids):
            raise BadInputError(f"data '{name}' ({split}) holds no images", fix="choose another split or folder")
        numbers = [0] * len(ids) if strata is None else [int(number) for number in strata]
        if len(set(ids)) != len(ids) or len(numbers) != len(ids):
            raise BadInputError(
                f"data '{name}' has {len(ids)} ids, {len(set(ids))} of them different, {len(numbers)} labels"
            )
        self.name, self.split, self.classes = name, split, classes
        self.ids, self.strata = list(ids), numbers
        self._digest: str | None = None

    @classmethod
    def require(cls: type[Self], data: "Dataset") -> Self:
        """Return `data`, which must be of this kind: `Samples.require(load_data("digits"))`.

        Raises:
            BadInputError: it is of another kind.

        """
        if not isinstance(data, cls):
            raise BadInputError(f"data '{data.name}' is for {data.task}", expected=f"data for {cls.task}")
        return data

    @abstractmethod
    def image(self, index: int) -> Image:
        """Image number `index`."""

    @abstractmethod
    def fingerprint(self, index: int) -> str:
        """Name the content of an item and how it was made, without decoding it where that is costly."""

    @abstractmethod
    def take(self: Self, indices: Sequence[int]) -> Self:
        """Keep the items at `indices`, in that order."""

    @abstractmethod
    def digest_rows(self, prints: Sequence[str]) -> list[str]:
        """Return the lines that the digest is computed from, given the fingerprint of every item.

        They must not depend on the order of the items.
        """

    @property
    def known(self) -> int | None:
        """How many images are of known classes, in a pair of a known and an unknown set; None for other data."""
        return None

    def __len__(self) -> int:
        return len(self.ids)

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of an image in pixels, without decoding it where that is costly."""
        image = self.image(index)
        height, width = image.shape[1:] if isinstance(image, Tensor) else image.shape[:2]
        return height, width

    def by_size(self, indices: Sequence[int]) -> list[list[int]]:
        """Group items by the size of their images, in order of appearance: only images of one size share a batch."""
        groups: dict[tuple[int, int], list[int]] = {}
        for index in indices:
            groups.setdefault(self.size(index), []).append(index)
        return list(groups.values())

    def in_order(self: Self) -> Self:
        """Sort by id (shorter ones first), the order in which outcomes are written."""
        order = sorted(range(len(self)), key=lambda i: (len(self.ids[i]), self.ids[i]))
        return self if order == list(range(len(self))) else self.take(order)

    def spread(self: Self, limit: int) -> Self:
        """Keep `limit` items, evenly spread after a stable sort by stratum. The choice is always the same.

        Raises:
            BadInputError: a limit below 1.

        """
        if limit < 1:
            raise BadInputError(f"limit {limit}", expected="at least 1")
        if limit >= len(self):
            return self
        order = sorted(range(len(self)), key=lambda i: self.strata[i])
        return self.take(sorted(order[(2 * k + 1) * len(self) // (2 * limit)] for k in range(limit)))

    def digest(self) -> str:
        """SHA-256 over ids, labels and contents, whatever the order; computed once."""
        if self._digest is None:
            with ThreadPoolExecutor() as pool:
                prints = list(pool.map(self.fingerprint, range(len(self))))
            self._digest = hashlib.sha256("\n".join(self.digest_rows(prints)).encode()).hexdigest()
        return self._digest


class Part(Dataset):
    """Some items of another data set, in the order given. Every kind of data set has a part of its own kind.

    Raises:
        BadInputError: no indices, or one of them twice.

    """

    def __init__(self, whole: Dataset, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, [int(i) for i in indices]
        ids, strata = [whole.ids[i] for i in self.indices], [whole.strata[i] for i in self.indices]
        Dataset.__init__(self, whole.name, whole.split, ids, whole.classes, strata)
        self.class_names, self.skipped = whole.class_names, whole.skipped
        self.expected = whole.expected if len(self) == len(whole) else None

    def image(self, index: int) -> Any:
        """Image number `index` of the part."""
        return self.whole.image(self.indices[index])

    def fingerprint(self, index: int) -> str:
        """As in the whole set."""
        return self.whole.fingerprint(self.indices[index])

    def size(self, index: int) -> tuple[int, int]:
        """As in the whole set."""
        return self.whole.size(self.indices[index])


def array_fingerprint(array: NDArray[Any]) -> str:
    """Hash of an array's type, shape and values."""
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()
