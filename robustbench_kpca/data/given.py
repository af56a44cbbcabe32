"""Data as a Python program gives them: tensors, arrays, loaders, torch's `Dataset`, Hugging Face's `datasets`."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.data.base import Dataset, Image, array_fingerprint
from robustbench_kpca.data.io.reading import to_rgb
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.samples import ArraySamples, Relabelled, Samples


def as_dataset(images: Any, labels: Any = None, *, name: str = "images", classes: int | None = None) -> Dataset:
    """Convert the arguments of a call to a data set.

    Args:
        images: a `Dataset`; the name of a data set; a float tensor or array (batch, channels, height, width) in [0, 1],
            or a uint8 array (batch, height, width, 3); a pair of these and their labels; a loader of pairs of float
            tensors and labels; a map-style `torch.utils.data.Dataset` of pairs of an image and a label; or a Hugging
            Face `datasets.Dataset` with one column of images and one of labels. Images of the latter two may be float
            tensors, uint8 arrays or Pillow images.
        labels: one integer label per image, if `images` is a tensor or array.
        name: name of a data set made from these. Its ids are "0", "1", ... in the given order.
        classes: number of classes, where the labels do not have all of them.

    Raises:
        BadInputError: images or labels of another type or shape, or as in `load_data`.
    """
    if isinstance(images, Dataset | str) and labels is not None:
        raise BadInputError(
            "labels for a data set, which has its own",
            expected="images as a tensor or array, with their labels",
            fix="the field `labels` of a protocol can be set in a TOML file",
        )
    if isinstance(images, Dataset | str):
        return with_classes(load_data(images) if isinstance(images, str) else images, classes)
    if labels is None and isinstance(images, (tuple, list)) and [getattr(part, "ndim", 0) for part in images] == [4, 1]:
        images, labels = images
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    if type(images).__module__.startswith("datasets.") and labels is None:
        return _from_hub(images, name, classes)
    if isinstance(images, TorchDataset) and labels is None and hasattr(images, "__getitem__"):
        numbers = _labels_of(images)
        titles = None if _changes_labels(images) else getattr(images, "classes", None)
        names = [str(title) for title in titles] if isinstance(titles, (list, tuple)) else None
        return ItemSamples(images, numbers, name=name, classes=classes, names=names)
    if not isinstance(images, (Tensor, np.ndarray)) and labels is None and isinstance(images, Iterable):
        images, labels = _gather(images)
    if not isinstance(images, (Tensor, np.ndarray)) or labels is None:
        raise BadInputError(
            f"images of type {type(images).__name__}, labels of type {type(labels).__name__}",
            expected="tensors or arrays, a loader of (images, labels), a torch or Hugging Face dataset, or a data name",
        )
    if images.ndim != 4:
        raise BadInputError(f"images of shape {tuple(images.shape)}", expected="(batch, channels, height, width)")
    _require_channels_first(images)
    numbers = _numbers(labels, len(images))
    ids = [str(i) for i in range(len(numbers))]
    dataset = ArraySamples(
        _pictures(images), numbers, name=name, split="all", ids=ids, classes=classes or _counted(numbers)
    )
    dataset.counted = classes is None
    return dataset


def with_classes(data: Dataset, classes: int | None) -> Dataset:
    """Return data with the number of classes that the user states, where it was only counted.

    Raises:
        BadInputError: the data know another number.
    """
    if classes is None:
        return data
    if isinstance(data, Samples) and data.known_part is not None:
        pair = data.take(range(len(data)))
        pair.known_part = Samples.require(with_classes(data.known_part, classes))
        return pair
    if classes == data.classes:
        return data
    if not (isinstance(data, Samples) and data.counted and data.classes <= classes):
        raise BadInputError(f"classes = {classes} for data '{data.name}', which has {data.classes}", fix="leave it out")
    return Relabelled(data, {label: label for label in data.labels}, classes, None)


class ItemSamples(Samples):
    """The items of an indexed collection, read on access: `items[i]` is an image, or begins with image and label.

    An item must be the same at every reading, and its label must be that of `labels`; else it is refused when read.

    Args:
        classes: number of classes; None: that of the names, or else counted.
        names: names of the classes, None if unknown.
    """

    def __init__(
        self, items: Any, labels: Sequence[int], *, name: str, classes: int | None, names: Sequence[str] | None
    ) -> None:
        number = classes or (len(names) if names else _counted(labels))
        super().__init__(name, "all", [str(i) for i in range(len(labels))], labels, number)
        self.items, self.prints = items, dict[int, str]()
        self.class_names = tuple(names) if names and len(names) == number else None
        self.counted, self.numbered_by_name = classes is None and not names, self.class_names is not None
        self.raw = isinstance(self._item(0), Pillow.Image)

    def image(self, index: int) -> Image:
        """Image number `index`."""
        image = self._read(index)
        digest = array_fingerprint(image.numpy() if isinstance(image, Tensor) else image)
        if self.prints.setdefault(index, digest) != digest:
            raise BadInputError(
                f"image {index} of data '{self.name}' is another one at every reading",
                expected="transforms without chance",
                fix="give the transforms of evaluation",
            )
        return image

    def fingerprint(self, index: int) -> str:
        """Hash of the values."""
        if index not in self.prints:
            self.image(index)
        return self.prints[index]

    def _read(self, index: int) -> Image:
        item = self._item(index)
        if isinstance(item, Pillow.Image):
            return np.array(to_rgb(item))
        if isinstance(item, Tensor) and item.is_floating_point() and item.ndim == 3:
            _require_channels_first(item[None])
            return item.detach().cpu()
        if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 3 and item.shape[2] == 3:
            return item
        shape = tuple(getattr(item, "shape", ()))
        raise BadInputError(
            f"image {index} of data '{self.name}' is a {type(item).__name__} of shape {shape}",
            expected="a float tensor (channels, height, width) in [0, 1], a uint8 array (height, width, 3), or a "
            "Pillow image",
        )

    def _item(self, index: int) -> Any:
        item = self.items[index]
        if not isinstance(item, (tuple, list)):
            return item
        if len(item) > 1 and not _is(item[1], self.strata[index]):
            raise BadInputError(
                f"item {index} of data '{self.name}' has the label {str(item[1])[:40]}, its `targets` say "
                f"{self.strata[index]}",
                expected="equal labels",
            )
        return item[0]


def _is(label: Any, number: int) -> bool:
    try:
        return int(label) == number
    except (TypeError, ValueError, RuntimeError):  # no number, or several
        return False


class _Column:
    """One column of a Hugging Face data set."""

    def __init__(self, table: Any, column: str) -> None:
        self.table, self.column = table, column

    def __getitem__(self, index: int) -> Any:
        return self.table[index][self.column]


def _from_hub(table: Any, name: str, classes: int | None) -> ItemSamples:
    """Read a Hugging Face data set: its column of images and its column of labels."""
    features: Any = getattr(table, "features", None)
    if not isinstance(features, dict) or not hasattr(table, "num_rows") or isinstance(table.num_rows, dict):
        raise BadInputError(f"a {type(table).__name__}", expected='one split of a data set, such as data["test"]')
    kinds = {column: type(feature).__name__ for column, feature in features.items()}
    pictures = [column for column, kind in kinds.items() if kind == "Image"]
    labelled = [column for column, kind in kinds.items() if kind == "ClassLabel"] or [
        column for column in ("label", "labels") if str(getattr(features.get(column), "dtype", "")).startswith("int")
    ]
    if len(pictures) != 1 or len(labelled) != 1:
        raise BadInputError(
            f"a data set with the columns {', '.join(f'{c} ({k})' for c, k in kinds.items())}",
            expected="one of images and one of labels",
            fix="keep these two: data.select_columns([...])",
        )
    feature = features[labelled[0]]
    names = list(feature.names) if kinds[labelled[0]] == "ClassLabel" else None
    labels = [int(label) for label in table[labelled[0]]]
    return ItemSamples(_Column(table, pictures[0]), labels, name=name, classes=classes, names=names)


def _labels_of(items: Any) -> list[int]:
    """Return the labels of a torch data set: its `targets` if its items have just these, or else those of all items."""
    targets = None if _changes_labels(items) else getattr(items, "targets", None)
    if isinstance(targets, (list, tuple, Tensor, np.ndarray)) and len(targets) == len(items):
        return _numbers(targets, len(items))
    try:
        return _numbers([int(items[index][1]) for index in range(len(items))], len(items))
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise BadInputError(
            f"the data set failed ({reason_of(error)})", expected="items of (image, integer label)"
        ) from None


def _changes_labels(items: Any) -> bool:
    """Whether a torch data set shows other labels than its `targets`: by torchvision's transforms of labels."""
    joint = getattr(items, "transforms", None)  # torchvision's own holds that of labels
    return any(
        transform is not None
        for transform in (getattr(items, "target_transform", None), getattr(joint, "target_transform", joint))
    )


def _numbers(labels: Any, images: int) -> list[int]:
    try:
        targets = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInputError(
            f"labels are not a tensor ({reason_of(error)})", expected="one integer label per image"
        ) from None
    if targets.ndim != 1 or targets.is_floating_point() or len(targets) != images:
        raise BadInputError(
            f"labels of shape {tuple(targets.shape)} and dtype {targets.dtype} for {images} images",
            expected="one integer label per image",
        )
    return [int(label) for label in targets.tolist()]


def _pictures(images: Tensor | NDArray[Any]) -> Image:
    if isinstance(images, Tensor):
        return images.detach().cpu()
    if images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] == 3:
        return images
    if images.dtype in (np.float32, np.float64) and images.ndim == 4:
        return torch.from_numpy(np.ascontiguousarray(images))
    raise BadInputError(
        f"an array of {images.dtype} and shape {images.shape}",
        expected="uint8 (batch, height, width, 3), or floats (batch, channels, height, width) in [0, 1]",
    )


def _require_channels_first(images: Tensor | NDArray[Any]) -> None:
    floats = images.is_floating_point() if isinstance(images, Tensor) else images.dtype.kind == "f"
    if floats and images.shape[1] > 4 and images.shape[3] in (1, 3):
        raise BadInputError(
            f"images of shape {tuple(images.shape)}",
            expected="(batch, channels, height, width)",
            fix="move the channels: images.transpose(0, 3, 1, 2), or permute(0, 3, 1, 2) of a tensor",
        )


def _counted(labels: Sequence[int]) -> int:
    return max([*labels, 0]) + 1  # at least 1: 0 would mean images without labels


def _gather(loader: Iterable[Any]) -> tuple[Tensor, Tensor]:
    try:
        pairs = [(torch.as_tensor(images), torch.as_tensor(labels)) for images, labels in loader]
        if pairs:
            return torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInputError(
            f"the loader failed ({reason_of(error)})", expected="batches of (images, labels) of one size"
        ) from None
    raise BadInputError("the loader yields no batches", expected="batches of (images, labels)")
