"""Training windows of scenes; each depends on (seed, epoch, scene) only, not on the process or worker that makes it.

Image and mask are scaled, cropped and flipped together, then colours are distorted. The transformations are those of
mmsegmentation's ADE20K configuration, which Segmenter (arXiv:2105.05633) uses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import sha256
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.data.scenes import Mask, Pixels, Scenes
from robustbench_kpca.models.families import normalisation_of
from robustbench_kpca.training.content import spread
from robustbench_kpca.training.machine import epoch_seed
from robustbench_kpca.training.recipe import Recipe, SceneWindows
from robustbench_kpca.training.source import Batch, Source
from robustbench_kpca.types import IGNORE, Images, Labels

BRIGHTNESS, CONTRAST, SATURATION, HUE = 32, (0.5, 1.5), (0.5, 1.5), 18
_TRIES = 10


@dataclass(frozen=True)
class Window:
    """Takes random square windows from scenes.

    Attributes:
        settings: settings of the augmentation; `settings.crop` is the side of a window in pixels.
        fill: RGB in [0, 1], for pixels of the window outside the image; their class is IGNORE.
    """

    settings: SceneWindows
    fill: Sequence[float]

    def __call__(
        self, image: Pixels, mask: Mask, rng: np.random.Generator
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return an image, float32 (3, crop, crop) in [0, 1], and its classes, int64 (crop, crop)."""
        settings = self.settings
        image, mask = resize(image, mask, settings.resize, rng.uniform(settings.scale[0], settings.scale[1]))
        image, mask = crop(image, mask, settings.crop, settings.most_of_one, rng)
        if rng.random() < settings.hflip:
            image, mask = image[:, ::-1], mask[:, ::-1]
        if settings.photometric:
            image = distort(np.ascontiguousarray(image), rng)
        side, (height, width) = settings.crop, mask.shape
        pixels = np.empty((3, side, side), np.float32)
        pixels[:] = np.array(self.fill, np.float32)[:, None, None]
        pixels[:, :height, :width] = image.transpose(2, 0, 1) / np.float32(255)
        classes = np.full((side, side), IGNORE, np.int64)
        classes[:height, :width] = mask
        return pixels, classes


def resize(image: Pixels, mask: Mask, sides: Sequence[int], factor: float = 1.0) -> tuple[Pixels, Mask]:
    """Scale image and mask by `factor`; the aspect ratio is kept.

    Where `sides`, (short, long), is not empty, they are first scaled to the largest size that fits into it.
    """
    height, width = mask.shape
    if sides:
        factor *= min(min(sides) / min(height, width), max(sides) / max(height, width))
    size = max(1, int(width * factor + 0.5)), max(1, int(height * factor + 0.5))
    if size == (width, height):
        return image, mask
    pixels = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
    return pixels.astype(np.uint8), cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST).astype(np.int16)


def crop(image: Pixels, mask: Mask, side: int, most: float, rng: np.random.Generator) -> tuple[Pixels, Mask]:
    """Cut out a random square, at most `side` pixels wide.

    It is drawn again, up to ten times in all, while one class has the share `most` or more of its labelled pixels.
    """
    height, width = mask.shape
    for _ in range(_TRIES):
        top = int(rng.integers(max(height - side, 0) + 1))
        left = int(rng.integers(max(width - side, 0) + 1))
        cut = slice(top, top + side), slice(left, left + side)
        if most >= 1:
            break
        counts = np.bincount(mask[cut][mask[cut] != IGNORE])
        if counts.sum() > counts.max(initial=0) and counts.max() < most * counts.sum():
            break
    return image[cut], mask[cut]


def distort(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Change brightness, contrast, saturation and hue, each with probability one half.

    Contrast is changed before or after saturation and hue, at random. Hue is OpenCV's, from 0 to 179.
    """
    contrast_first = rng.random() < 0.5
    if rng.random() < 0.5:
        image = _levels(image, 1.0, rng.uniform(-BRIGHTNESS, BRIGHTNESS))
    if contrast_first and rng.random() < 0.5:
        image = _levels(image, rng.uniform(*CONTRAST), 0.0)
    if rng.random() < 0.5:
        hsv = _converted(image, cv2.COLOR_RGB2HSV)
        hsv[..., 1] = _levels(hsv[..., 1], rng.uniform(*SATURATION), 0.0)
        image = _converted(hsv, cv2.COLOR_HSV2RGB)
    if rng.random() < 0.5:
        hsv = _converted(image, cv2.COLOR_RGB2HSV)
        hsv[..., 0] = (hsv[..., 0].astype(np.int64) + rng.integers(-HUE, HUE + 1)) % 180
        image = _converted(hsv, cv2.COLOR_HSV2RGB)
    if not contrast_first and rng.random() < 0.5:
        image = _levels(image, rng.uniform(*CONTRAST), 0.0)
    return image


def _converted(image: Pixels, code: int) -> Pixels:
    converted: Pixels = cv2.cvtColor(image, code).astype(np.uint8)
    return converted


def _levels(values: Pixels, factor: float, offset: float) -> Pixels:
    changed: Pixels = (values.astype(np.float32) * factor + offset).clip(0, 255).astype(np.uint8)
    return changed


_Item = tuple[Tensor, Tensor, str]


class SceneSource(Source):
    """Windows of scenes, transformed as the recipe's `[scenes]` says; a last smaller batch is dropped."""

    reads = Scenes

    def __init__(self, recipe: Recipe, folder: Path | None, accelerator: Accelerator) -> None:
        super().__init__(recipe, folder, accelerator)
        assert recipe.scenes is not None
        self.settings = recipe.scenes
        self.train, self.val = (Scenes.require(self.part(name)) for name in ("train", "val"))
        self.notes = self.train.notes + self.val.notes
        self.data_sha256 = sha256("\n".join(self.train.ids).encode())
        prints = [part.fingerprint(number) for part in (self.train, self.val) for number in spread(len(part))]
        self.content_sha256 = sha256("\n".join(prints).encode())
        mean, _ = normalisation_of(recipe.model, recipe.model_options)
        self.window = Window(self.settings, tuple(mean))
        self.length = len(self.train) // recipe.batch_size * recipe.batch_size
        if not self.length:
            raise BadInputError(
                f"{len(self.train)} training scenes",
                expected=f"at least {recipe.batch_size}, a batch",
                fix="lower batch_size",
            )

    def epoch(self, number: int) -> Iterator[Batch]:
        """Shuffle, divide into global batches, and keep every n-th scene for this process."""
        recipe = self.recipe
        rng = torch.Generator().manual_seed(recipe.seed * 100_003 + number)
        order = torch.randperm(len(self.train), generator=rng)[: self.length].split(recipe.batch_size)
        loader = DataLoader(
            _Windows(self.train, self.window, recipe.seed, number),
            batch_sampler=[batch[self.share].tolist() for batch in order],
            num_workers=self.settings.workers,
            collate_fn=_collate,
            generator=torch.Generator().manual_seed(epoch_seed(recipe.seed, number, self.accelerator)),
            pin_memory=self.accelerator.device.type == "cuda",
        )
        device = self.accelerator.device
        for x, y, ids in loader:
            counted = self.accelerator.reduce((y != IGNORE).sum().to(device))  # over all processes
            yield Batch(x.to(device), y.to(device), ids, recipe.batch_size, recipe.batch_size / counted.clamp_min(1))

    def held_out(self, part: str) -> Iterator[tuple[Images, Labels]]:
        """Yield this process's share of `val`; there is no test part.

        Images are cut into windows that cover them. Every pixel counts once: where a window overlaps an earlier one,
        its pixels are IGNORE. Images smaller than a window are shown whole.
        """
        batch: list[tuple[Tensor, Tensor]] = []
        for index in range(len(self.val))[self.share] if part == "val" else ():
            image, mask = resize(self.val.image(index), self.val.mask(index), self.settings.resize)
            for pixels, classes in tiles(image, mask, self.settings.crop):
                if batch and (len(batch) == self.recipe.batch_size or batch[0][1].shape != classes.shape):
                    yield self._stacked(batch)
                    batch = []
                x = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).float() / 255
                batch.append((x, torch.from_numpy(classes.astype(np.int64))))
        if batch:
            yield self._stacked(batch)

    def sample(self) -> tuple[Images, int]:
        """Return a black image and the largest label."""
        side = self.settings.crop
        return torch.zeros(1, 3, side, side), self.train.classes - 1

    def _stacked(self, batch: list[tuple[Tensor, Tensor]]) -> tuple[Images, Labels]:
        images, labels = zip(*batch, strict=True)
        return torch.stack(images).to(self.accelerator.device), torch.stack(labels).to(self.accelerator.device)


class _Windows(Dataset[_Item]):
    """The windows of one epoch, by the number of the scene."""

    def __init__(self, scenes: Scenes, window: Window, seed: int, epoch: int) -> None:
        self.scenes, self.window, self.seed, self.epoch = scenes, window, seed, epoch

    def __getitem__(self, index: int) -> _Item:
        name = self.scenes.ids[index]
        rng = generator(sample_key(self.seed, f"train/{self.epoch}", name))
        x, y = self.window(self.scenes.image(index), self.scenes.mask(index), rng)
        return torch.from_numpy(x), torch.from_numpy(y), name


def tiles(image: Pixels, mask: Mask, side: int) -> Iterator[tuple[Pixels, Mask]]:
    """Cut an image and its mask into windows of at most `side` pixels a side, in which every pixel counts once."""
    rows, columns = (_starts(length, side) for length in mask.shape)
    for seen_above, top in rows:
        for seen_left, left in columns:
            cut = slice(top, top + side), slice(left, left + side)
            classes = mask[cut].copy()
            classes[: seen_above - top] = IGNORE
            classes[:, : seen_left - left] = IGNORE
            yield image[cut], classes


def _starts(length: int, side: int) -> list[tuple[int, int]]:
    """Return, of each window along an axis, where the pixels that no earlier window has begin, and where it begins."""
    return [(begin, max(0, min(begin, length - side))) for begin in range(0, length, side)]


def _collate(items: list[_Item]) -> tuple[Tensor, Tensor, list[str]]:
    images, labels, ids = zip(*items, strict=True)
    return torch.stack(images), torch.stack(labels), list(ids)
