"""Read a folder of images: one sub-folder per class, or a `labels.csv` with columns `file` and `label`."""

import csv
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.data.imagenet_classes import imagenet_indices
from robustbench_kpca.data.io.reading import image_files, no_images, read_rgb, sub_folders, unreadable
from robustbench_kpca.data.request import BadImages, View
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.errors import BadInputError

PARTS = {"train", "val", "validation", "test"}


class ImageFiles(Samples):
    """Image files below `root`, each read on access.

    Args:
        root: folder.
        files: paths relative to `root`.
        labels: one per file.
        classes: see `Samples`.
        name: name of the set.
        split: split of the set.
        view: how images are resized and cropped.
        ids: one per file; default: the relative paths.
        stored: whether the files already have the input size of the model: they are neither resized nor cropped, and
            refused if their size differs from the view's.
        bad_images: with `skip`, every file is decoded now, and unreadable ones are listed in `skipped`.

    """

    def __init__(
        self,
        root: Path,
        files: Sequence[str],
        labels: Sequence[int],
        classes: int,
        *,
        name: str,
        split: str,
        view: View,
        ids: Sequence[str] | None = None,
        stored: bool = False,
        bad_images: BadImages = "fail",
    ) -> None:
        odd = next((file for file in files if not file.isprintable()), None)
        if odd is not None:
            raise BadInputError(f"file name {odd!r} in {root}", expected="names in UTF-8 without control characters")
        bad = set(unreadable([root / file for file in files])) if bad_images == "skip" else set()
        kept = [position for position in range(len(files)) if position not in bad]
        if bad and not kept:
            raise BadInputError(f"none of the {len(files)} images of {root} can be read", fix="copy them again")
        names = files if ids is None else ids
        super().__init__(name, split, [names[i] for i in kept], [labels[i] for i in kept], classes)
        self.skipped = tuple(names[i] for i in sorted(bad))
        self.root, self.view, self.stored = root, view, stored
        self.files = [files[i] for i in kept]

    def image(self, index: int) -> NDArray[np.uint8]:
        """Decode one image."""
        path = self.root / self.files[index]
        image = read_rgb(path)
        if self.stored:
            require_size(path, image.size, self.view)
        else:
            try:
                image = self.view.apply(image)
            except BadInputError as error:
                raise BadInputError(f"image {path} cannot be used ({error})", fix="remove it") from None
        return np.array(image)

    def size(self, index: int) -> tuple[int, int]:  # noqa: ARG002 (all images have one size)
        """Return height and width of the view."""
        return self.view.size, self.view.size

    def fingerprint(self, index: int) -> str:
        """Return the hash of the file and the parameters of resizing."""
        digest = hashlib.sha256((self.root / self.files[index]).read_bytes()).hexdigest()
        if self.stored:
            return f"{digest} as stored"
        return f"{digest} {self.view.how}"


class Folder(ImageFiles):
    """Images of a folder as RGB, resized and cropped by a `View`.

    Sub-folders are classes in sorted order. If all names are ImageNet-1K WordNet ids, labels are the ImageNet indices,
    so that a few of the 1,000 classes can be evaluated. A folder `train`, `val` or `test` is a split of its parent.
    """

    def __init__(self, root: Path, view: View, bad_images: BadImages = "fail") -> None:
        table = root / "labels.csv"
        files, labels, classes = _from_table(table) if table.is_file() else _from_subfolders(root)
        whole, part = root.resolve(), "all"
        if whole.name in PARTS:
            whole, part = whole.parent, whole.name
        super().__init__(root, files, labels, classes, name=whole.name, split=part, view=view, bad_images=bad_images)


def require_size(path: Path, size: tuple[int, int], view: View) -> None:
    """Refuse a stored image whose size differs from the view's: resizing it would change the corruption.

    Raises:
        BadInputError: the sizes differ.

    """
    if size != (view.size, view.size):
        raise BadInputError(
            f"stored image {path} has {size[0]} x {size[1]} pixels, but the model needs {view.size} x {view.size}",
            expected="images stored at the size of the model, because they are not resized or cropped",
        )


def _from_table(table: Path) -> tuple[list[str], list[int], int]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        files, labels = [row["file"] for row in rows], [int(row["label"]) for row in rows]
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise BadInputError(f"{table} cannot be used ({error!r})", expected="columns file and label") from None
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BadInputError(f"{table} lists '{name}'", expected="paths inside its folder")
        if not (table.parent / name).is_file():
            raise BadInputError(f"{table} lists '{name}', which does not exist", fix="restore the file")
    return files, labels, max([*labels, -1]) + 1


def _from_subfolders(root: Path) -> tuple[list[str], list[int], int]:
    names = sub_folders(root)
    if names and set(names) <= PARTS:
        raise BadInputError(
            f"folder {root} contains the splits {', '.join(names)}", fix=f"give one: {root / names[-1]}"
        )
    index = imagenet_indices(names) or _in_order(names, root)
    files = [f"{name}/{file}" for name in names for file in image_files(root / name)]
    if not files:
        met = "images, but none in a folder of its class" if image_files(root) else no_images(root)
        raise BadInputError(f"folder {root} contains {met}", expected="one folder per class, or a labels.csv")
    return files, [index[file.partition("/")[0]] for file in files], max([*index.values(), -1]) + 1


def _in_order(names: list[str], root: Path) -> dict[str, int]:
    """Assign numbers to classes; refuse names whose text order (torchvision) and natural order (timm) differ."""
    for first, second in zip(names, sorted(names, key=_natural), strict=True):
        if first != second:
            raise BadInputError(
                f"class folders '{first}' and '{second}' of {root} have an ambiguous order: as text '{first}' comes "
                f"first, in natural order '{second}'",
                fix="rename them (01, 02, ..., 10; lower case), or write a labels.csv; for ImageNet-V2 use imagenet-v2:"
                f"{root}",
            )
    return {name: number for number, name in enumerate(names)}


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name.lower())
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]
