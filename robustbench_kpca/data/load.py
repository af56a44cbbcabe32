"""One way to every data set: a name, a folder, tensors or a loader."""

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
        source: a name of `rbk list data`, followed by `:FOLDER` where its files lie in a folder of your choice
            (`imagenet-a:/data/imagenet-a`, `masks:town`); or the path of a folder of images (one sub-folder a class, or
            a `labels.csv`). A set that is not shipped is found by its name alone in the folder RBK_DATA.
        split: part of the set; by default the one that models are evaluated on, `test` or `val`. Folders of images have
            no splits: for them it is not used.
        limit: keep only so many images, evenly spread over the set and over its labels.
        view: how image files are resized and cropped; see `input_view` of `models.loading`. Scenes are not resized.
            Stored corruptions are not either: they are refused where their size is another.
        bad_images: what to do with image files that cannot be used: `fail` when one is met, or `skip` (see
            `Dataset.skipped`), for which every file is decoded first.

    Returns:
        `Samples` (images with labels) or `Scenes` (images with masks), as its `task` says.

    Raises:
        BadInputError: unknown name or split, unreadable folder, no images, a folder that is not the set it is said to
            be, a limit below 1.

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
    """Tell what `load_data` would return, without reading any data.

    It is the declared result of the set's `load`, or `Dataset` where nothing is declared. A source that is no name of a
    data set is taken for a folder of images.
    """
    name = source.partition(":")[0]
    if name not in DATASETS.names():
        return Samples
    kind: type[Dataset] = inspect.get_annotations(DATASETS.get(name), eval_str=True).get("return", Dataset)
    return kind


def as_dataset(images: Any, labels: Any = None, *, name: str = "images") -> Dataset:
    """Return what a caller has as a data set.

    Args:
        images: a `Dataset`, a data name, float tensors (batch, channels, height, width) in [0, 1], or a loader of pairs
            of such tensors and labels.
        labels: one integer label an image, where `images` are tensors.
        name: of the set that tensors become. Their ids are "0", "1", ... in the order given.

    Raises:
        BadInputError: images or labels of another type or shape, a name as `load_data` refuses it.

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
        raise BadInputError(f"labels that are no tensor ({error})", expected="one integer label an image") from None
    if targets.ndim != 1 or targets.is_floating_point() or len(targets) != len(images):
        raise BadInputError(
            f"labels of shape {tuple(targets.shape)} and dtype {targets.dtype} for {len(images)} images",
            expected="one integer label an image",
        )
    numbers = [int(label) for label in targets.tolist()]
    classes = max([*numbers, 0]) + 1  # never 0, which would mean images without labels
    ids = [str(i) for i in range(len(numbers))]
    return ArraySamples(images.detach().cpu(), numbers, name=_plain(name), split="all", ids=ids, classes=classes)


def _gather(loader: Iterable[Any]) -> tuple[Tensor, Tensor]:
    try:
        pairs = [(torch.as_tensor(images), torch.as_tensor(labels)) for images, labels in loader]
    except (TypeError, ValueError) as error:
        raise BadInputError(f"a loader that fails ({error})", expected="batches of (images, labels)") from None
    if not pairs:
        raise BadInputError("the loader yields nothing", expected="batches of (images, labels)")
    return torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)
