"""Data sets for classification: images, signals or tokens with one label each; also as a model numbers its classes."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.base import Dataset, Image, Part, array_fingerprint
from robustbench_kpca.data.forms import PICTURES, Form
from robustbench_kpca.data.request import View
from robustbench_kpca.types import Images, Labels

__all__ = ["ArraySamples", "Image", "Samples", "SamplesPart", "array_fingerprint", "to_pixels", "to_tensor"]

Self = TypeVar("Self", bound="Samples")


class Samples(Dataset):
    """Images with labels, or samples of another form (`Dataset.form`).

    Args:
        labels: one per image, 0 to `classes` - 1.
        classes: number of classes; 0 if the images are of unknown classes. Then the property `labels` raises an error,
            so that no accuracy is computed by mistake, and the given labels are used as strata only.

    Attributes:
        known_part: of a pair (see `Pair`): its in-distribution set, whose labels are classes; `labels` of the pair tell
            whether an image is out-of-distribution (1) or not (0). None for other sets.
        counted: whether `classes` was only counted from the labels, so that there may be more.
        numbered_by_name: whether classes have the numbers of their names' places in a list that others made, such as
            that of folders; a set of the package knows its classes.
        subset: the classes of a folder with some of ImageNet-1K's 1,000 classes; None for other sets.

    Raises:
        BadInputError: no images, repeated ids, or a label outside 0 to `classes` - 1.
    """

    task = "classification"
    known_part: "Samples | None" = None
    counted: bool = False
    numbered_by_name: bool = False
    subset: tuple[int, ...] | None = None

    def __init__(self, name: str, split: str, ids: Sequence[str], labels: Sequence[int], classes: int) -> None:
        super().__init__(name, split, ids, classes, labels)
        bad = next((label for label in labels if not 0 <= label < classes), None) if classes else None
        if bad is not None:
            expected = "labels from 0" if bad < 0 else f"0 to {classes - 1}"
            raise BadInputError(f"label {bad} in data '{name}'", expected=expected)

    @property
    def labels(self) -> list[int]:
        """The class of each image."""
        if not self.classes:
            raise BadInputError(
                f"data '{self.name}' has no labels: its images are of unknown classes",
                fix="use it for out-of-distribution detection, as --against",
            )
        return self.strata

    @property
    def is_pair(self) -> bool:
        """Whether the set is a pair for out-of-distribution detection."""
        return self.known_part is not None

    @property
    def known(self) -> int | None:
        """Number of in-distribution images (label 0) of a pair; None for other data."""
        return self.labels.count(0) if self.is_pair else None

    def take(self: Self, indices: Sequence[int]) -> Self:
        """Return the samples at `indices`, in that order."""
        return cast("Self", SamplesPart(self, indices))

    def digest_rows(self, prints: Sequence[str]) -> list[str]:
        """Return id, label and fingerprint of every image."""
        return sorted(f"{self.ids[i]}\t{self.strata[i]}\t{prints[i]}" for i in range(len(self)))

    def tensors(self) -> tuple[Images, Labels]:
        """Return all images in [0, 1] as float32 (batch, 3, height, width), and their labels; see `Form` for others."""
        images = torch.stack([self.form.tensor(self.image(i)) for i in range(len(self))])
        return images, torch.tensor(self.labels, dtype=torch.int64)


class SamplesPart(Part, Samples):
    """Selected samples of another set; what is known of its classes is kept."""

    def __init__(self, whole: Samples, indices: Sequence[int]) -> None:
        super().__init__(whole, indices)
        self.known_part, self.counted, self.subset = whole.known_part, whole.counted, whole.subset
        self.numbered_by_name = whole.numbered_by_name


class ArraySamples(Samples):
    """Samples in memory, as one array or tensor of images or, with another `form`, of signals or tokens."""

    def __init__(
        self, images: Image, labels: Sequence[int], *, name: str, split: str, ids: Sequence[str], classes: int,
        form: Form = PICTURES, class_names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, split, ids, labels, classes)
        self.images, self.form = images, form
        self.class_names = None if class_names is None else tuple(class_names)

    def image(self, index: int) -> Image:
        """Image number `index`."""
        return self.images[index]

    def fingerprint(self, index: int) -> str:
        """Hash of the values."""
        image = self.images[index]
        array: NDArray[Any] = image.numpy() if isinstance(image, Tensor) else image
        return array_fingerprint(array)


to_tensor, to_pixels = PICTURES.tensor, PICTURES.array


class Relabelled(SamplesPart):
    """The same samples; label i is now `numbers[i]`, one of `classes` classes. The digest is that of the new labels."""

    def __init__(self, whole: Samples, numbers: Mapping[int, int], classes: int, names: Sequence[str] | None) -> None:
        super().__init__(whole, range(len(whole)))
        self.strata = [numbers[label] for label in whole.labels]
        self.classes, self.class_names, self.subset = classes, None if names is None else tuple(names), None
        self.counted = self.numbered_by_name = False


class Resized(SamplesPart):
    """The same pictures, each resized and cropped by a `View`. The view is part of the digest."""

    def __init__(self, whole: Samples, view: View) -> None:
        super().__init__(whole, range(len(whole)))
        self.view, self.resized, self.raw = view, view.how, False

    def image(self, index: int) -> NDArray[np.uint8]:
        """Picture number `index`, resized."""
        image = self.whole.image(index)
        if isinstance(image, Tensor):
            raise BadInputError(
                f"pictures of data '{self.name}' are tensors, which are not resized", fix="give them at this size"
            )
        try:
            return np.array(self.view.apply(Pillow.fromarray(image)))
        except BadInputError as error:
            raise BadInputError(f"picture {self.ids[index]} cannot be used ({error})", fix="remove it") from None

    def size(self, index: int) -> tuple[int, int]:  # noqa: ARG002 (all pictures have one size)
        """Return height and width of the view."""
        return self.view.size, self.view.size

    def fingerprint(self, index: int) -> str:
        """Return the fingerprint of the picture as it was, and how it is resized."""
        return f"{self.whole.fingerprint(index)} {self.view.how}"
