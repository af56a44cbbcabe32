"""Read a folder of images: one sub-folder per class, or a `labels.csv` with columns `file` and `label`."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import read_file, sha256
from robustbench_kpca.data.imagenet_classes import imagenet_indices, imagenet_wnids
from robustbench_kpca.data.io import reading
from robustbench_kpca.data.io.place import natural, own_name
from robustbench_kpca.data.request import View
from robustbench_kpca.data.samples import Samples

PARTS = {"train", "val", "valid", "validation", "test"}
_FRACTION = re.compile(r"-?\d+\.\d*")
LONGEST = 1024
"""Bytes of a file name or label in a `labels.csv`."""


class ImageFiles(Samples):
    """Image files below `root`, each read on access.

    Args:
        files: paths relative to `root`.
        labels: one per file.
        view: how images are resized and cropped; None: not at all (see `Samples.raw`).
        ids: one per file; default: the relative paths.
        stored: whether the files already have the input size of the model: they are neither resized nor cropped, and
            refused if their size differs from the view's.
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
        view: View | None,
        ids: Sequence[str] | None = None,
        stored: bool = False,
    ) -> None:
        odd = next((file for file in files if not file.isprintable()), None)
        if odd is not None:
            raise BadInputError(f"file name {odd!r} in {root}", expected="names in UTF-8 without control characters")
        super().__init__(name, split, list(files if ids is None else ids), list(labels), classes)
        self.root, self.view, self.stored, self.raw = root, view, stored, view is None
        self.resized = "" if view is None or stored else view.how
        self.files = list(files)

    def image(self, index: int) -> NDArray[np.uint8]:
        """Decode one image."""
        path = self.root / self.files[index]
        image = reading.read_rgb(path)
        if self.view is None:
            return np.array(image)
        if self.stored:
            require_size(path, image.size, self.view)
            return np.array(image)
        try:
            return np.array(self.view.apply(image))
        except BadInputError as error:
            raise BadInputError(f"image {path} cannot be used ({reason_of(error)})", fix="remove it") from None

    def size(self, index: int) -> tuple[int, int]:
        """Return height and width: those of the view, or else of the file."""
        if self.view is not None:
            return self.view.size, self.view.size
        width, height = reading.image_size(self.root / self.files[index])
        return height, width

    def fingerprint(self, index: int) -> str:
        """Return the hash of the file and the parameters of resizing."""
        digest = sha256(read_file(self.root / self.files[index], "image"))
        if self.view is None:
            return digest
        return f"{digest} {'as stored' if self.stored else self.view.how}"


class Folder(ImageFiles):
    """Images of a folder as RGB, of the sizes that they are stored in.

    Sub-folders are classes, in the order that torchvision and timm agree on. If all names are ImageNet-1K WordNet ids,
    labels are the ImageNet indices, so that a few of the 1,000 classes can be evaluated. With a `labels.csv`, labels
    are numbers of the model's classes, or names, in natural order. Images without class folders and without table are
    of unknown classes. A folder `train`, `val` or `test` is a split of its parent.
    """

    def __init__(self, root: Path) -> None:
        table = root / "labels.csv"
        listed = _from_table(table) if table.is_file() else _from_subfolders(root)
        whole, part = root.resolve(), "all"
        if whole.name in PARTS:
            whole, part = whole.parent, whole.name
        name = own_name(whole)
        super().__init__(root, listed.files, listed.labels, listed.classes, name=name, split=part, view=None)
        self.class_names, self.subset, self.counted = listed.names, listed.subset, listed.counted
        self.numbered_by_name = listed.names is not None
        self.notes = _left_out(root, listed.files)


def _left_out(root: Path, files: Sequence[str]) -> tuple[str, ...]:
    """Say what in a folder is not evaluated: files that are not read, pictures that are not listed, empty folders."""
    listed = (root / "labels.csv").is_file()
    unlisted = set(reading.image_files(root)) - set(files)
    empty = set() if listed else set(reading.sub_folders(root)) - {file.partition("/")[0] for file in files}
    named = [(sorted(unlisted), "pictures"), (sorted(empty), "empty class folders")]
    notes = [f"{len(names)} {what} of {root.name} were left out: {_some(names)}" for names, what in named if names]
    return (*reading.left_out(root), *notes)


def _some(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + ("; ..." if len(names) > 3 else "")


@dataclass(frozen=True)
class _Contents:
    """What a folder holds: files, one label each, and what is known of the classes."""

    files: list[str]
    labels: list[int]
    classes: int
    names: tuple[str, ...] | None = None
    subset: tuple[int, ...] | None = None
    counted: bool = False


def require_size(path: Path, size: tuple[int, int], view: View) -> None:
    """Refuse a stored image whose size differs from the view's: resizing it would change the corruption."""
    if size != (view.size, view.size):
        raise BadInputError(
            f"stored image {path} has {size[0]} x {size[1]} pixels, but the model needs {view.size} x {view.size}",
            expected="images stored at the size of the model, because they are not resized or cropped",
        )


def _from_table(table: Path) -> _Contents:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            heads, rows = list(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(
            f"{table} cannot be read ({reason_of(error)})", expected="a text with columns file and label"
        ) from None
    if not {"file", "label"} <= set(heads):
        raise BadInputError(f"{table} has the columns {', '.join(heads) or '(none)'}", expected="file and label")
    for number, row in enumerate(rows, 2):
        _require_row(table, number, row["file"], row["label"])
    files, texts = [Path(row["file"]).as_posix() for row in rows], [row["label"].strip() for row in rows]
    if all(label.removeprefix("-").isdecimal() for label in texts):
        labels = [int(label) for label in texts]
        return _Contents(files, labels, max([*labels, -1]) + 1, counted=True)
    numeric = next((number for number, label in enumerate(texts, 2) if label.removeprefix("-").isdecimal()), None)
    if numeric is not None:
        raise BadInputError(
            f"line {numeric} of {table} has the label {texts[numeric - 2]}, other lines have names",
            expected="numbers from 0 in every line, or names in every line",
        )
    fraction = next((number for number, label in enumerate(texts, 2) if _FRACTION.fullmatch(label)), None)
    if fraction is not None:
        raise BadInputError(
            f"line {fraction} of {table} has the label {texts[fraction - 2]}", expected="whole numbers, or names"
        )
    names = tuple(sorted(set(texts), key=natural))
    index = imagenet_indices(names) or {name: number for number, name in enumerate(names)}
    return _named(files, [index[name] for name in texts], names, index)


def _require_row(table: Path, number: int, file: str | None, label: str | None) -> None:
    if not file or not (label or "").strip():
        raise BadInputError(f"line {number} of {table} is not complete", expected="a file and its label")
    if not file.isprintable() or len(file.encode()) > LONGEST or len(label or "") > LONGEST:
        raise BadInputError(
            f"line {number} of {table} is {file[:60]!a}, {(label or '')[:60]!a}",
            expected=f"printable text of at most {LONGEST} bytes a cell",
        )
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise BadInputError(f"{table} lists '{file}'", expected="paths inside its folder")
    try:
        there = (table.parent / file).is_file()
    except OSError:  # a part of the name is too long
        there = False
    if not there:
        raise BadInputError(f"{table} lists '{file}', which does not exist", fix="restore the file")


def _from_subfolders(root: Path) -> _Contents:
    names = reading.sub_folders(root)
    if names and {name.lower() for name in names} <= PARTS:
        usual = next((name for name in names if name.lower() == "test"), names[-1])
        raise BadInputError(f"folder {root} contains the splits {', '.join(names)}", fix=f"give one: {root / usual}")
    files = [f"{name}/{file}" for name in names for file in reading.image_files(root / name)]
    everything = reading.image_files(root)
    if not everything:
        raise BadInputError(
            f"folder {root} contains {reading.no_images(root)}", expected="one folder per class, or a labels.csv"
        )
    if not files:  # a flat folder
        return _Contents(everything, [0] * len(everything), 0)
    if len(everything) > len(files):
        stray = next(file for file in everything if "/" not in file)
        raise BadInputError(
            f"folder {root} contains {len(everything) - len(files)} images beside its class folders, such as '{stray}'",
            fix="move them into the folder of their class, or remove them",
        )
    index = imagenet_indices(names) or _in_order(names, root)
    return _named(files, [index[file.partition("/")[0]] for file in files], tuple(names), index)


def _named(files: list[str], labels: list[int], names: tuple[str, ...], index: Mapping[str, int]) -> _Contents:
    """Classes with names: some of ImageNet's, or their own."""
    if imagenet_indices(names) is None:
        return _Contents(files, labels, len(names), names)
    return _Contents(files, labels, len(imagenet_wnids()), subset=tuple(sorted(index.values())))


def _in_order(names: list[str], root: Path) -> dict[str, int]:
    """Assign numbers to classes; refuse names whose text order (torchvision) and natural order (timm) differ."""
    for first, second in zip(names, sorted(names, key=natural), strict=True):
        if first != second:
            raise BadInputError(
                f"class folders '{first}' and '{second}' of {root} have an ambiguous order: as text '{first}' comes "
                f"first, in natural order '{second}'",
                fix="rename them (01, 02, ..., 10; lower case), or write a labels.csv; for ImageNet-V2 use imagenet-v2:"
                f"{root}",
            )
    return {name: number for number, name in enumerate(names)}
