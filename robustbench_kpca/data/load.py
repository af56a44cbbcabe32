"""Load a data set by name or folder."""

import inspect
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, reason_of
from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.imagenet_classes import COLLECTIONS, imagenet_classes
from robustbench_kpca.data.io.folder import Folder
from robustbench_kpca.data.names import is_outside, is_published, require_data
from robustbench_kpca.data.request import DEIT, Request, View
from robustbench_kpca.data.samples import Resized, Samples


def load_data(
    source: str,
    split: str | None = None,
    limit: int | None = None,
    view: View | None = None,
) -> Dataset:
    """Load a data set by name, or a folder of images.

    Args:
        source: a name of `rbk list data`, with `:FOLDER` if its files are in a folder of your choice
            (`imagenet-a:/data/imagenet-a`, `masks:town`); or the path of a folder of images (one sub-folder per class,
            or a `labels.csv`); or the address `FILE.py:LOAD` of a function of a `Request`. Without `:FOLDER`, a set
            that is not bundled is searched in the folder RBK_DATA.
        split: split of the set; default: the evaluation split, `test` or `val`. For a folder of images, `imagenet-a`,
            `imagenet-r`, `imagenet-o` and `imagenet-100` are its images of the classes of those collections.
        limit: number of images to keep, evenly spread over the set and its labels; default: all.
        view: how image files are resized and cropped. By default those of published sets as for DeiT (224 of 256), and
            those of a folder not at all. Published sets are always cropped, by default with DeiT's crop. Images with
            masks are not resized. Stored corruptions are not resized either; they are refused if their size differs
            from the view's.

    Returns:
        `Samples` (images with labels) or `Scenes` (images with masks), as its `task` says.

    Raises:
        BadInputError: unknown name or split, unreadable folder, no images, a folder that is not the named set, a limit
            below 1.

    Examples:
        >>> from robustbench_kpca import load_data
        >>> images, labels = load_data("digits", limit=10).tensors()
        >>> images.shape, labels.tolist()
        (torch.Size([10, 3, 32, 32]), [6, 8, 7, 5, 9, 3, 4, 1, 2, 0])
    """
    require_data(source)
    data: Dataset
    if is_outside(source):
        data = _from_outside(source, Request("", split, DEIT if view is None else view))
    elif is_published(source):
        name, _, folder = source.partition(":")
        request = Request(folder, split, DEIT if view is None else view.of_published)
        data = DATASETS.get(name)(request)
    else:
        images = _part(Folder(Path(source)), split)
        data = images if view is None else Resized(images, view)
    return data if limit is None else data.spread(limit)


def _part(data: Folder, split: str | None) -> Samples:
    """Return a folder, or its images of the classes of a collection; its labels must then be ImageNet-1K indices."""
    if split in (None, data.split):
        return data
    if split not in COLLECTIONS[1:]:
        raise BadInputError(f"the folder {data.root} has no split '{split}'", fix="give the folder of the split itself")
    if data.class_names is not None or not 0 < data.classes <= len(imagenet_classes("all")):
        raise BadInputError(
            f"split '{split}' of the folder {data.name}",
            expected="classes of ImageNet-1K: folders named by WordNet ids, or a labels.csv with its indices",
        )
    wanted = set(imagenet_classes(split))
    places = [place for place, label in enumerate(data.labels) if label in wanted]
    if not places:
        raise BadInputError(f"the folder {data.name} has no image of a class of {split}", fix="give another folder")
    part = data.take(places)
    part.split = split
    return part


def _from_outside(source: str, request: Request) -> Dataset:
    """Return what the function at an address loads."""
    try:
        data = DATASETS.get(source)(request)
    except BenchmarkError:
        raise
    except Exception as error:  # noqa: BLE001 (foreign code)
        raise BadInputError(f"data set '{source}' cannot be loaded ({reason_of(error)})") from None
    if not isinstance(data, Dataset):
        raise BadInputError(f"data set '{source}' returned {type(data).__name__}", expected="a Dataset")
    return data


def kind_of(source: str) -> type[Dataset]:
    """Return the class of the result of `load_data`, without reading any data.

    It is the annotated return type of the set's `load`, or `Dataset` without annotation. A source that is not the name
    of a data set is treated as a folder of images.
    """
    name = source if is_outside(source) else source.partition(":")[0]
    if name not in DATASETS and not is_outside(source):
        return Samples
    kind: type[Dataset] = inspect.get_annotations(DATASETS.get(name), eval_str=True).get("return", Dataset)
    return kind
