"""The base class of data sets: indexed items with an image and an id, and a digest of the whole content."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.forms import PICTURES, Form

Image: TypeAlias = NDArray[np.uint8] | Tensor
"""uint8 (height, width, 3), or float32 (channels, height, width) for images that were never 8-bit."""

Self = TypeVar("Self", bound="Dataset")
"""A data set of the same class: a part of `Samples` is `Samples`, a part of `Scenes` is `Scenes`."""


class Dataset(ABC):
    """A set of images that can be indexed, and pickled for the worker processes of a loader.

    Args:
        split: split of the set, such as `test`.
        classes: number of classes; 0 if the images are of unknown classes.
        strata: one number per item; `spread` takes the same fraction of each stratum. Default: one stratum.

    Attributes:
        task: the task of these images, such as `classification`; every kind of data set defines its own.
        form: what a sample is: a picture, a signal, tokens or words.
        class_names: names of the classes, in their order; None if unknown.
        raw: whether pictures have the sizes that they were stored in, so that a model's view says how they are shown.
        resized: the rule by which pictures are resized and cropped; empty if they are shown as they are.
        vocabulary_sha256: digest of the words that tokens are the numbers of; None for other data.
        entropy: the entropy rate of the source of a text in nats a word, where it is known.
        expected: number of items of the published set; None if unknown, or if only a part is loaded.
        notes: what else a record should say of the data.

    Raises:
        BadInputError: no items, repeated ids, or a wrong number of strata.
    """

    task: ClassVar[str]
    form: Form = PICTURES
    class_names: tuple[str, ...] | None = None
    raw: bool = False
    resized: str = ""
    expected: int | None = None
    notes: tuple[str, ...] = ()
    entropy: float | None = None
    vocabulary_sha256: str | None = None

    def __init__(
        self, name: str, split: str, ids: Sequence[str], classes: int, strata: Sequence[int] | None = None
    ) -> None:
        if not len(ids):
            raise BadInputError(f"data '{name}' ({split}) contains no images", fix="choose another split or folder")
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
        """Return `data` if it is of this class, as in `Samples.require(load_data("digits"))`."""
        if not isinstance(data, cls):
            raise BadInputError(f"data '{data.name}' is for {data.task}", expected=f"data for {cls.task}")
        return data

    @abstractmethod
    def image(self, index: int) -> Image:
        """Image number `index`."""

    @abstractmethod
    def fingerprint(self, index: int) -> str:
        """Return a text that identifies the content of an item and how it was made, if possible without decoding."""

    @abstractmethod
    def take(self: Self, indices: Sequence[int]) -> Self:
        """Return the items at `indices`, in that order."""

    @abstractmethod
    def digest_rows(self, prints: Sequence[str]) -> list[str]:
        """Return the lines that the digest is computed from, given the fingerprint of every item.

        They must not depend on the order of the items.
        """

    @property
    def known(self) -> int | None:
        """Number of images of known classes, in a pair of a known and an unknown set; None for other data."""
        return None

    @property
    def remarks(self) -> list[str]:
        """What records and plans say of the data: the notes, and how many published items are missing."""
        missing = self.expected is not None and len(self) < self.expected
        text = f"only {len(self)} of the {self.expected} published images of {self.name} are present"
        return [*self.notes, *([text] if missing else [])]

    def __len__(self) -> int:
        return len(self.ids)

    def size(self, index: int) -> tuple[int, int]:
        """Return height and width of an image in pixels, if possible without decoding it."""
        image = self.image(index)
        height, width = image.shape[1:] if isinstance(image, Tensor) else image.shape[:2]
        return height, width

    def by_size(self, indices: Sequence[int]) -> list[list[int]]:
        """Group items by image size, in order of appearance; only images of one size can share a batch."""
        groups: dict[tuple[int, int], list[int]] = {}
        for index in indices:
            groups.setdefault(self.size(index), []).append(index)
        return list(groups.values())

    def in_order(self: Self) -> Self:
        """Return the items sorted by id (shorter ids first), which is the order of outcomes."""
        order = sorted(range(len(self)), key=lambda i: (len(self.ids[i]), self.ids[i]))
        return self if order == list(range(len(self))) else self.take(order)

    def spread(self: Self, limit: int) -> Self:
        """Return `limit` items, evenly spread after a stable sort by stratum. The choice is deterministic.

        Raises:
            BadInputError: `limit` is below 1.
        """
        if limit < 1:
            raise BadInputError(f"limit {limit}", expected="at least 1")
        if limit >= len(self):
            return self
        order = sorted(range(len(self)), key=lambda i: self.strata[i])
        return self.take(sorted(order[(2 * k + 1) * len(self) // (2 * limit)] for k in range(limit)))

    def digest(self) -> str:
        """SHA-256 of ids, labels and contents, independent of the order; computed once."""
        if self._digest is None:
            with ThreadPoolExecutor() as pool:  # a task for many items: to hand one over takes longer than many hashes
                parts = pool.map(lambda part: [self.fingerprint(item) for item in part], _parts(len(self)))
                prints = [item_print for part in parts for item_print in part]
            self._digest = hashlib.sha256("\n".join(self.digest_rows(prints)).encode()).hexdigest()
        return self._digest


class Part(Dataset):
    """Selected items of another data set, in the given order. Every kind of data set has its own subclass.

    Raises:
        BadInputError: no indices, or an index occurs twice.
    """

    def __init__(self, whole: Dataset, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, [int(i) for i in indices]
        ids, strata = [whole.ids[i] for i in self.indices], [whole.strata[i] for i in self.indices]
        Dataset.__init__(self, whole.name, whole.split, ids, classes=whole.classes, strata=strata)
        self.form, self.class_names = whole.form, whole.class_names
        self.vocabulary_sha256 = whole.vocabulary_sha256
        self.raw, self.resized, self.notes = whole.raw, whole.resized, whole.notes
        self.expected = whole.expected if len(self) == len(whole) else None

    def image(self, index: int) -> Any:
        """Image number `index` of the part."""
        return self.whole.image(self.indices[index])

    def fingerprint(self, index: int) -> str:
        """Return the same as for the whole set."""
        return self.whole.fingerprint(self.indices[index])

    def size(self, index: int) -> tuple[int, int]:
        """Return the same as for the whole set."""
        return self.whole.size(self.indices[index])


def _parts(number: int, each: int = 64) -> list[range]:
    return [range(first, min(first + each, number)) for first in range(0, number, each)]


def array_fingerprint(array: NDArray[Any]) -> str:
    """Hash of an array's type, shape and values."""
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()
