"""Load a data set by name or folder, or wrap tensors or a loader as a data set."""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.io.folder import Folder
from robustbench_kpca.data.request import BadImages, Request, View
from robustbench_kpca.data.samples import ArraySamples, Samples
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.registry import unknown_name


def load_data(
    source: str,
    split: str | None = None,
    limit: int | None = None,
    view: View = View(),  # noqa: B008
    bad_images: BadImages = "fail",
) -> Dataset:
    """Load a data set by name, or a folder of images.

    Args:
        source: a name of `rbk list data`, with `:FOLDER` if its files are in a folder of your choice
            (`imagenet-a:/data/imagenet-a`, `masks:town`); or the path of a folder of images (one sub-folder per class,
            or a `labels.csv`). Without `:FOLDER`, a set that is not bundled is searched in the folder RBK_DATA.
        split: split of the set; default: the evaluation split, `test` or `val`. Ignored for folders of images.
        limit: number of images to keep, evenly spread over the set and its labels; default: all.
        view: how image files are resized and cropped; see `input_view` of `models.loading`. Images with masks are not
            resized. Stored corruptions are not resized either; they are refused if their size differs from the view's.
        bad_images: what to do with unreadable image files: `fail` at the first one, or `skip` them (see
            `Dataset.skipped`); `skip` decodes every file first.

    Returns:
        `Samples` (images with labels) or `Scenes` (images with masks), as its `task` says.

    Raises:
        BadInputError: unknown name or split, unreadable folder, no images, a folder that is not the named set, a limit
            below 1.

    """
    name, colon, folder = source.partition(":")
    request = Request(folder, split, view, bad_images)
    if name in DATASETS.names() and (folder or not colon):
        data: Dataset = DATASETS.get(name)(request)
    elif source and Path(source).is_dir():
        data = Folder(Path(source), view, bad_images)
    else:
        raise unknown_name(
            "data set", name if folder else source, DATASETS.names(), "(or give an existing folder, or NAME:FOLDER)"
        )
    return data if limit is None else data.spread(limit)


def kind_of(source: str) -> type[Dataset]:
    """Return the class of the result of `load_data`, without reading any data.

    It is the annotated return type of the set's `load`, or `Dataset` without annotation. A source that is not the name
    of a data set is treated as a folder of images.
    """
    name = source.partition(":")[0]
    if name not in DATASETS.names():
        return Samples
    kind: type[Dataset] = inspect.get_annotations(DATASETS.get(name), eval_str=True).get("return", Dataset)
    return kind


def as_dataset(images: Any, labels: Any = None, *, name: str = "images") -> Dataset:
    """Convert the arguments of a call to a data set.

    Args:
        images: a `Dataset`, the name of a data set, a float tensor (batch, channels, height, width) in [0, 1], or a
            loader of pairs of such tensors and labels.
        labels: one integer label per image, if `images` is a tensor.
        name: name of a data set made from tensors. Its ids are "0", "1", ... in the given order.

    Raises:
        BadInputError: images or labels of another type or shape, or as in `load_data`.

    """
    if isinstance(images, Dataset):
        return images
    if isinstance(images, str):
        return load_data(images)
    if not isinstance(images, Tensor) and labels is None and isinstance(images, Iterable):
        images, labels = _gather(images)
    if not isinstance(images, Tensor) or labels is None:
        raise BadInputError(
            f"images of type {type(images).__name__}, labels of type {type(labels).__name__}",
            expected="tensors, a loader of (images, labels), or a data name",
        )
    try:
        targets = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInputError(f"labels are not a tensor ({error})", expected="one integer label per image") from None
    if targets.ndim != 1 or targets.is_floating_point() or len(targets) != len(images):
        raise BadInputError(
            f"labels of shape {tuple(targets.shape)} and dtype {targets.dtype} for {len(images)} images",
            expected="one integer label per image",
        )
    numbers = [int(label) for label in targets.tolist()]
    classes = max([*numbers, 0]) + 1  # at least 1: 0 would mean images without labels
    ids = [str(i) for i in range(len(numbers))]
    return ArraySamples(images.detach().cpu(), numbers, name=_plain(name), split="all", ids=ids, classes=classes)


def _gather(loader: Iterable[Any]) -> tuple[Tensor, Tensor]:
    try:
        pairs = [(torch.as_tensor(images), torch.as_tensor(labels)) for images, labels in loader]
    except (TypeError, ValueError) as error:
        raise BadInputError(f"the loader failed ({error})", expected="batches of (images, labels)") from None
    if not pairs:
        raise BadInputError("the loader yields no batches", expected="batches of (images, labels)")
    return torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)
