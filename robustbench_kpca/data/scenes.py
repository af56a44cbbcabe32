"""Data sets for segmentation: images of any size with a class for every pixel."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.base import Dataset, Part, array_fingerprint
from robustbench_kpca.types import IGNORE

__all__ = ["IGNORE", "ArrayScenes", "Mask", "Pixels", "Scenes"]

Pixels = NDArray[np.uint8]
Mask = NDArray[np.int16]
Self = TypeVar("Self", bound="Scenes")
_STEP = 15  # 0, 15, ..., 255: 18 levels per channel
_WEIGHTS = (2, 4, 3)  # weights of squared differences in red, green and blue, roughly as in human vision
_RESERVED = ((0, 0, 0), (255, 255, 255))  # colours of no class; black marks ignored pixels


class Scenes(Dataset):
    """Images with masks; images can have different sizes.

    Args:
        palette: colours of the classes, uint8 (classes, 3); default: distinct colours.

    Raises:
        BadInputError: no scenes, repeated ids, no classes, a palette of another shape.
    """

    task = "segmentation"
    class_names: tuple[str, ...]

    def __init__(
        self, name: str, split: str, ids: Sequence[str], class_names: Sequence[str], palette: Pixels | None = None
    ) -> None:
        super().__init__(name, split, ids, len(class_names))
        self.class_names = tuple(class_names)
        self.palette = distinct_colours(self.classes) if palette is None else palette
        if not self.classes or self.palette.shape != (self.classes, 3):
            raise BadInputError(
                f"data '{name}' has {self.classes} classes and a palette of shape {self.palette.shape}",
                expected="at least one class, and one colour per class",
            )

    @abstractmethod
    def image(self, index: int) -> Pixels:
        """Image number `index`: uint8 (height, width, 3)."""

    @abstractmethod
    def mask(self, index: int) -> Mask:
        """Classes of image number `index`: int16 (height, width), 0 to `classes` - 1 or IGNORE, not only IGNORE."""

    def take(self: Self, indices: Sequence[int]) -> Self:
        """Return the scenes at `indices`, in that order."""
        return cast("Self", _ScenesPart(self, indices))

    def digest_rows(self, prints: Sequence[str]) -> list[str]:
        """Return the number of classes, then id and fingerprint of every scene."""
        return [
            str(self.classes),
            *sorted(f"{key}\t{fingerprint}" for key, fingerprint in zip(self.ids, prints, strict=True)),
        ]


class _ScenesPart(Part, Scenes):
    whole: Scenes

    def __init__(self, whole: Scenes, indices: Sequence[int]) -> None:
        super().__init__(whole, indices)
        self.palette = whole.palette

    def mask(self, index: int) -> Mask:
        return self.whole.mask(self.indices[index])


class ArrayScenes(Scenes):
    """Scenes in memory.

    Args:
        images: uint8 (height, width, 3) each.
        masks: integers (height, width) each, 0 to classes - 1 or IGNORE.
        ids: default: "0", "1", ...

    Raises:
        BadInputError: an image or mask of a wrong type or shape; a mask with unknown classes, or only IGNORE.
    """

    def __init__(
        self,
        images: Sequence[NDArray[Any]],
        masks: Sequence[NDArray[Any]],
        class_names: Sequence[str],
        *,
        palette: Pixels | None = None,
        ids: Sequence[str] | None = None,
        name: str = "scenes",
        split: str = "all",
    ) -> None:
        names = [str(i) for i in range(len(images))] if ids is None else ids
        super().__init__(name, split, names, class_names, palette)
        if not len(images) == len(masks) == len(names):
            raise BadInputError(f"{len(images)} images, {len(masks)} masks, {len(names)} ids", expected="equal numbers")
        for key, image, mask in zip(names, images, masks, strict=True):
            _require_scene(key, image, mask, self.classes)
        self.images, self.masks = images, [np.asarray(mask, np.int16) for mask in masks]

    def image(self, index: int) -> Pixels:
        """Image number `index`."""
        return self.images[index]

    def mask(self, index: int) -> Mask:
        """Mask number `index`."""
        return self.masks[index]

    def fingerprint(self, index: int) -> str:
        """Hash of the values of image and mask."""
        return f"{array_fingerprint(self.images[index])} {array_fingerprint(self.masks[index])}"


def _require_scene(key: str, image: NDArray[Any], mask: NDArray[Any], classes: int) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise BadInputError(
            f"image '{key}' is {image.dtype} of shape {image.shape}", expected="uint8 (height, width, 3)"
        )
    if not np.issubdtype(mask.dtype, np.integer) or mask.shape != image.shape[:2]:
        raise BadInputError(
            f"the mask of '{key}' is {mask.dtype} of shape {mask.shape}", expected=f"integers {image.shape[:2]}"
        )
    low, high = int(mask.min()), int(mask.max())
    if low < IGNORE or high >= classes:
        raise BadInputError(
            f"the mask of '{key}' contains class {low if low < IGNORE else high}",
            expected=f"0 to {classes - 1}, or {IGNORE} to ignore a pixel",
        )
    if high == IGNORE:
        raise BadInputError(f"the mask of '{key}' is empty: every pixel is ignored", fix="leave the image out")


def distinct_colours(classes: int) -> NDArray[np.uint8]:
    """Return uint8 (classes, 3); each colour is as far as possible from black, white and all earlier ones.

    The first colours do not depend on `classes`. After about 5,800 colours they repeat.
    """
    levels = np.arange(0, 256, _STEP)
    lattice = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    nearest = np.min([_distances(lattice, np.array(colour)) for colour in _RESERVED], axis=0)
    colours = np.empty((classes, 3), np.uint8)
    for label in range(classes):
        colours[label] = lattice[nearest.argmax()]
        nearest = np.minimum(nearest, _distances(lattice, colours[label].astype(np.int64)))
    return colours


def _distances(lattice: NDArray[np.int64], colour: NDArray[np.int64]) -> NDArray[np.int64]:
    squared: NDArray[np.int64] = (lattice - colour) ** 2 @ np.array(_WEIGHTS)
    return squared
