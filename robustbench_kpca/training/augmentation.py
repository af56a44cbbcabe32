"""Data augmentation for scenes: image and mask are scaled, cropped and flipped together, then colours are distorted.

The transformations are those of mmsegmentation's ADE20K configuration, which Segmenter (arXiv:2105.05633) uses. All
random numbers come from the generator that the caller gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.data.scenes import Mask, Pixels
from robustbench_kpca.training.recipe import SceneWindows
from robustbench_kpca.types import IGNORE

BRIGHTNESS, CONTRAST, SATURATION, HUE = 32, (0.5, 1.5), (0.5, 1.5), 18
_TRIES = 10


@dataclass(frozen=True)
class Window:
    """Takes random square windows from scenes.

    Attributes:
        settings: of the augmentation; `settings.crop` is the side of a window in pixels.
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
