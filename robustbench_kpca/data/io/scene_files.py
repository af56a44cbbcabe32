"""Read images and masks from two folders: an image and a mask with the same name and size are a scene."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file, sha256
from robustbench_kpca.data.io.labelling import Labelling
from robustbench_kpca.data.io.reading import image_files, image_size, left_out, read_rgb, sub_folders
from robustbench_kpca.data.scenes import Mask, Pixels, Scenes

LOSSLESS = {".bmp", ".png"}
"""Suffixes of masks; lossy formats would change ids and colours."""

Pairs: TypeAlias = dict[str, tuple[Path, Path]]
"""id -> (image file, mask file)."""


@dataclass(frozen=True)
class Place:
    """The folders of images and masks; files of a pair have the same name, except for the suffix."""

    images: Path
    masks: Path

    def pairs(self) -> Pairs:
        """Return the pairs by id.

        Raises:
            BadInputError: a missing folder, two files with the same id, files without a partner.
        """
        for folder in (self.images, self.masks):
            if not folder.is_dir():
                raise BadInputError(
                    f"there is no folder {folder}",
                    expected="a folder of images and a folder of masks",
                    fix=_siblings(folder),
                )
        images = _by_id(self.images, image_files(self.images))
        drawn = [file for file in image_files(self.masks) if PurePosixPath(file).suffix.lower() in LOSSLESS]
        masks = _by_id(self.masks, drawn)
        unpaired = [images.get(key) or masks[key] for key in sorted(images.keys() ^ masks.keys())]
        if unpaired:
            other = self.masks if unpaired[0].is_relative_to(self.images) else self.images
            raise BadInputError(
                f"{unpaired[0]} has no partner in {other} ({len(unpaired)} such files)",
                expected="an image and a mask (png or bmp) for every name",
            )
        return {key: (images[key], masks[key]) for key in images}


def _siblings(folder: Path) -> str:
    """Return a text that lists the folders in the parent of a missing one."""
    siblings = sub_folders(folder.parent) if folder.parent.is_dir() else []
    return f"there are: {', '.join(siblings)}" if siblings else ""


def _by_id(folder: Path, files: list[str]) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for file in files:
        key = str(PurePosixPath(file).with_suffix(""))
        if key in paths or not file.isprintable():
            raise BadInputError(
                f"file {file!r} in {folder}", expected="printable names that differ in more than the suffix"
            )
        paths[key] = folder / file
    return paths


class SceneFiles(Scenes):
    """Image and mask files, each read on access; the EXIF orientation is ignored."""

    def __init__(
        self,
        place: Place,
        labelling: Labelling,
        *,
        name: str,
        split: str,
        expected: int | None = None,
    ) -> None:
        pairs = place.pairs()
        self.labelling, self.meaning = labelling, labelling.digest()
        super().__init__(name, split, list(pairs), labelling.class_names, labelling.palette)
        self.files = list(pairs.values())
        self.expected = expected
        self.notes = left_out(place.images) + left_out(place.masks, LOSSLESS)

    def image(self, index: int) -> Pixels:
        """Decode one image."""
        return np.array(read_rgb(self.files[index][0]))

    def mask(self, index: int) -> Mask:
        """Decode one mask; it must have the size of its image."""
        return self._mask(*self.files[index])

    def size(self, index: int) -> tuple[int, int]:
        """Read height and width from the header of the image."""
        width, height = image_size(self.files[index][0])
        return height, width

    def fingerprint(self, index: int) -> str:
        """Return the hashes of both files and of the meaning of the mask values."""
        image, mask = (sha256(read_file(path)) for path in self.files[index])
        return f"{image} {mask} {self.meaning}"

    def _mask(self, image: Path, path: Path) -> Mask:
        mask = self.labelling.read(path)
        width, height = image_size(image)
        if mask.shape != (height, width):
            raise BadInputError(
                f"mask {path} has {mask.shape[1]} x {mask.shape[0]} pixels, but its image has {width} x {height}",
                expected="the same size",
            )
        return mask
