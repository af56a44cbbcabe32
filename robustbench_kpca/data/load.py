"""One way to every data set: a name, a folder, tensors or a loader."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.io.folder import BadImages, Folder, View
from robustbench_kpca.data.io.stored import STORED, load_stored
from robustbench_kpca.data.samples import ArraySamples, Samples
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.registry import unknown_name


def load_data(
    source: str,
    split: str = "test",
    limit: int | None = None,
    view: View = View(),  # noqa: B008
    bad_images: BadImages = "fail",
) -> Samples:
    """Load a data set by name, or a folder of images.

    Args:
        source: a name of `rbk list data`; the path of a folder (one sub-folder a class, or a `labels.csv`); or a
            stored set as `NAME:FOLDER` (`imagenet-a:/data/imagenet-a`), or as `NAME` if it lies in RBK_DATA. Stored
            sets are imagenet, imagenet-a, -r, -o, -v2, -sketch, -c, -c-bar and cifar10-c.
        split: part of a named data set; folders have none. `imagenet` has `val`, and its images of the 200 classes of
            `imagenet-a`, `imagenet-r` or `imagenet-o`.
        limit: keep only so many images, evenly spread over the set (every class keeps its share).
        view: how image files are resized and cropped; see `input_view` of `models.loading`. Stored corruptions are
            not, and are refused where their size is another.
        bad_images: what to do with image files that cannot be read: `fail` when one is met, or `skip` (see
            `Samples.skipped`), for which every file is decoded first.

    Raises:
        BadInputError: unknown name, unreadable folder, no images, a folder that is not the set it is said to be.

    """
    if bad_images not in ("fail", "skip"):
        raise BadInputError(f"bad_images '{bad_images}'", expected="fail or skip")
    name, colon, folder = source.partition(":")
    if source in DATASETS.names():
        samples: Samples = DATASETS.get(source)(split)
    elif name in STORED and (folder or not colon):
        samples = load_stored(name, folder, split, view, bad_images)
    elif source and Path(source).is_dir():
        samples = Folder(Path(source), view, bad_images)
    else:
        known = [*DATASETS.names(), *STORED]
        raise unknown_name("data set", source, known, "(or give an existing folder, or NAME:FOLDER)")
    return samples if limit is None else spread(samples, limit)


def spread(samples: Samples, limit: int) -> Samples:
    """Keep `limit` samples, evenly spread after a stable sort by label or stratum: deterministic and stratified."""
    if limit < 1:
        raise BadInputError(f"limit {limit}", expected="at least 1")
    if limit >= len(samples):
        return samples
    order = sorted(range(len(samples)), key=lambda i: samples.strata[i])
    chosen = sorted(order[(2 * k + 1) * len(samples) // (2 * limit)] for k in range(limit))
    return samples.take(chosen)


def as_samples(images: Any, labels: Any = None, *, name: str = "images") -> Samples:
    """Wrap what a caller has: `Samples`, a data name, tensors in [0, 1] with labels, or a loader of such pairs.

    Ids are "0", "1", ... in the order given.
    """
    if isinstance(images, Samples):
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
