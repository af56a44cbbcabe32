"""A folder of images: one sub-folder a class, or a `labels.csv` with columns `file` and `label`."""

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from robustbench_kpca.data._samples import Samples
from robustbench_kpca.errors import BadInputError

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}
PARTS = {"train", "val", "validation", "test"}


@dataclass(frozen=True)
class View:
    """How an image file becomes a model's input: short side resized to size / crop, then the centre, size x size.

    The default is DeiT's evaluation (256 and 224). It is part of what a model was published with: timm's own
    configurations differ in `crop`, which moves an accuracy by a point or two.
    """

    size: int = 224
    crop: float = 0.875
    interpolation: str = "bicubic"


class Folder(Samples):
    """Images of a folder as a model wants to see them (`View`), RGB.

    Sub-folders are classes in sorted order; where every one is an ImageNet-1K WordNet id, labels are the ImageNet
    indices (so ten classes of a thousand can be evaluated). A folder called `train`, `val` or `test` is that part of
    its parent.
    """

    def __init__(self, root: Path, view: View) -> None:
        self.root, self.view = root, view
        table = root / "labels.csv"
        self.files, labels, classes = _from_table(table) if table.is_file() else _from_subfolders(root)
        whole, part = root.resolve(), "all"
        if whole.name in PARTS:
            whole, part = whole.parent, whole.name
        odd = next((file for file in self.files if not file.isprintable()), None)
        if odd is not None:
            raise BadInputError(f"file name {odd!r} in {root}", expected="names in UTF-8 without control characters")
        super().__init__(whole.name, part, self.files, labels, classes)

    def image(self, index: int) -> NDArray[np.uint8]:
        """Decode one image."""
        path = self.root / self.files[index]
        try:
            with Pillow.open(path) as file:
                image = file.convert("RGB")
        except (OSError, UnidentifiedImageError, Pillow.DecompressionBombError) as error:
            raise BadInputError(f"image {path} cannot be read ({error})", fix="replace or remove it") from None
        size, short = self.view.size, self._short_side()
        scale = short / min(image.size)
        width, height = (max(short, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Pillow.Resampling[self.view.interpolation.upper()])
        left, top = (width - size) // 2, (height - size) // 2
        return np.array(image.crop((left, top, left + size, top + size)))

    def fingerprint(self, index: int) -> str:
        """Hash of the file, and how it is resized."""
        data = (self.root / self.files[index]).read_bytes()
        return f"{hashlib.sha256(data).hexdigest()} {self.view.interpolation} {self.view.size} of {self._short_side()}"

    def _short_side(self) -> int:
        return int(self.view.size / self.view.crop)


def _from_table(table: Path) -> tuple[list[str], list[int], int]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        files, labels = [row["file"] for row in rows], [int(row["label"]) for row in rows]
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise BadInputError(f"{table} cannot be used ({error!r})", expected="columns file and label") from None
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BadInputError(f"{table} names '{name}'", expected="paths inside its folder")
        if not (table.parent / name).is_file():
            raise BadInputError(f"{table} names '{name}', which does not exist", fix="restore the file")
    return files, labels, max([*labels, -1]) + 1


def _from_subfolders(root: Path) -> tuple[list[str], list[int], int]:
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if names and set(names) <= PARTS:
        raise BadInputError(f"folder {root} holds the parts {', '.join(names)}", fix=f"name one: {root / names[-1]}")
    index = _imagenet_indices(names) or {name: number for number, name in enumerate(names)}
    files, labels = [], []
    for name in names:
        for path in sorted((root / name).rglob("*")):
            if path.suffix.lower() in SUFFIXES and path.is_file():
                files.append(path.relative_to(root).as_posix())
                labels.append(index[name])
    return files, labels, max([*index.values(), -1]) + 1


def _imagenet_indices(names: list[str]) -> dict[str, int] | None:
    """Map WordNet ids to ImageNet-1K indices, or None if a name is none."""
    from timm.data import ImageNetInfo

    known = {synset: number for number, synset in enumerate(ImageNetInfo().label_names())}
    return {name: known[name] for name in names} if names and all(name in known for name in names) else None
