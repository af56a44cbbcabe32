"""What every scene set is: RGB images of any size with a class for each pixel, stable ids and a digest of all three."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.data.io.folder import BadImages
from robustbench_kpca.data.io.palette import distinct_colours
from robustbench_kpca.data.samples import array_fingerprint
from robustbench_kpca.data.scene_sets import SCENES
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.registry import unknown_name
from robustbench_kpca.types import IGNORE

__all__ = ["IGNORE", "SCENES", "ArrayScenes", "Mask", "Pixels", "Scenes", "load_scenes"]

Pixels = NDArray[np.uint8]
Mask = NDArray[np.int16]


class Scenes(ABC):
    """Images with masks that can be indexed (and pickled, for the loader's workers); sizes may differ.

    Attributes:
        name: of the set.
        split: part of the set.
        ids: one a scene, all different.
        classes: how many there are.
        class_names: of the classes, in their order.
        palette: their colours, uint8 (classes, 3).
        skipped: what was left out because it could not be used, and why: one line a scene.
        expected: how many scenes the published set has, None where that is unknown or a part was asked for.

    Raises:
        BadInputError: no scenes, repeated ids, a name or colour too many or too few.

    """

    skipped: tuple[str, ...] = ()
    expected: int | None = None

    def __init__(
        self, name: str, split: str, ids: Sequence[str], class_names: Sequence[str], palette: Pixels | None = None
    ) -> None:
        if not len(ids):
            raise BadInputError(f"scenes '{name}' ({split}) hold no images", fix="choose another split or folder")
        if len(set(ids)) != len(ids):
            raise BadInputError(f"scenes '{name}' have {len(ids)} ids, {len(set(ids))} of them different")
        self.name, self.split, self.ids = name, split, list(ids)
        self.class_names, self.classes = tuple(class_names), len(class_names)
        self.palette = distinct_colours(self.classes) if palette is None else palette
        if not self.classes or self.palette.shape != (self.classes, 3):
            raise BadInputError(
                f"scenes '{name}' have {self.classes} classes and a palette of shape {self.palette.shape}",
                expected="one colour a class, and a class at least",
            )
        self._digest: str | None = None

    @abstractmethod
    def image(self, index: int) -> Pixels:
        """Image number `index`: uint8 (height, width, 3)."""

    @abstractmethod
    def mask(self, index: int) -> Mask:
        """Its classes: int16 (height, width), 0 to `classes` - 1 or IGNORE, never IGNORE alone."""

    @abstractmethod
    def fingerprint(self, index: int) -> str:
        """Name the content of an image and its mask, without decoding them where that is costly."""

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of an image, without decoding it where that is costly."""
        height, width, _ = self.image(index).shape
        return height, width

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: Sequence[int]) -> "Scenes":
        """Keep the scenes at `indices`, in that order."""
        return _Part(self, indices)

    def by_size(self, indices: Sequence[int]) -> list[list[int]]:
        """Group scenes by the size of their images, in order of appearance: only such can share a batch."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for index in indices:
            groups.setdefault(self.size(index), []).append(index)
        return list(groups.values())

    def in_order(self) -> "Scenes":
        """Sort by id (shorter ones first), the order in which outcomes are written."""
        order = sorted(range(len(self)), key=lambda i: (len(self.ids[i]), self.ids[i]))
        return self if order == list(range(len(self))) else self.take(order)

    def digest(self) -> str:
        """SHA-256 over the number of classes, ids and contents, whatever the order; computed once."""
        if self._digest is None:
            with ThreadPoolExecutor() as pool:
                prints = list(pool.map(self.fingerprint, range(len(self))))
            rows = sorted(f"{name}\t{content}" for name, content in zip(self.ids, prints, strict=True))
            text = "\n".join([str(self.classes), *rows])
            self._digest = hashlib.sha256(text.encode()).hexdigest()
        return self._digest


class _Part(Scenes):
    def __init__(self, whole: Scenes, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, [int(i) for i in indices]
        ids = [whole.ids[i] for i in self.indices]
        super().__init__(whole.name, whole.split, ids, whole.class_names, whole.palette)
        self.skipped = whole.skipped
        self.expected = whole.expected if len(self) == len(whole) else None

    def image(self, index: int) -> Pixels:
        return self.whole.image(self.indices[index])

    def mask(self, index: int) -> Mask:
        return self.whole.mask(self.indices[index])

    def size(self, index: int) -> tuple[int, int]:
        return self.whole.size(self.indices[index])

    def fingerprint(self, index: int) -> str:
        return self.whole.fingerprint(self.indices[index])


class ArrayScenes(Scenes):
    """Scenes held in memory.

    Args:
        images: uint8 (height, width, 3) each.
        masks: integers (height, width) each, 0 to classes - 1 or IGNORE.
        class_names: of the classes, in their order.
        palette: their colours; by default some that differ.
        ids: by default "0", "1", ...
        name: of the set.
        split: part of the set.

    Raises:
        BadInputError: what is no image or mask, masks of another size than their image, of unknown classes, or empty.

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
            raise BadInputError(f"{len(images)} images, {len(masks)} masks, {len(names)} ids", expected="as many")
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
        """Hash of the values of both."""
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
            f"the mask of '{key}' holds class {low if low < IGNORE else high}",
            expected=f"0 to {classes - 1}, or {IGNORE} to ignore a pixel",
        )
    if high == IGNORE:
        raise BadInputError(f"the mask of '{key}' is empty: all of it is to be ignored", fix="leave the image out")


def load_scenes(source: str, split: str = "val", limit: int | None = None, bad_images: BadImages = "fail") -> Scenes:
    """Load a scene set.

    Args:
        source: `shapes` (embedded), `ade20k:FOLDER`, `camvid:FOLDER` or `masks:FOLDER`; `ade20k` and `camvid` alone are
            those in RBK_DATA.
        split: `val`, or another part of the set.
        limit: keep only so many scenes, evenly spread over the set.
        bad_images: what to do with scenes that cannot be used: `fail` when one is met, or `skip` (see
            `Scenes.skipped`), for which every file is decoded first.

    Raises:
        BadInputError: unknown name, no such folder or split, or it is not the set that it is said to be.

    """
    if bad_images not in ("fail", "skip"):
        raise BadInputError(f"bad_images '{bad_images}'", expected="fail or skip")
    name, _, folder = source.partition(":")
    if name not in SCENES.names():
        raise unknown_name("scene set", name, SCENES.names(), "(with a folder: NAME:FOLDER)")
    scenes: Scenes = SCENES.get(name)(folder, split, bad_images)
    if limit is not None and limit < 1:
        raise BadInputError(f"limit {limit}", expected="at least 1")
    if limit is None or limit >= len(scenes):
        return scenes
    return scenes.take([(2 * k + 1) * len(scenes) // (2 * limit) for k in range(limit)])
