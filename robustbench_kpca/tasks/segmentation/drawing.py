"""Draw images, their masks, and the predictions of a model."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.runner import Runner, device_for
from robustbench_kpca._engine.inference.sliding_window import EVERY_PIXEL, Stream, batch_size_for
from robustbench_kpca.data.scenes import IGNORE, Mask, Pixels, Scenes
from robustbench_kpca.protocols.scenario import Clean
from robustbench_kpca.tasks.drawing import Colour, Drawing
from robustbench_kpca.tasks.segmentation.counts import windowing_of

BATCH_SIZE = 16  # largest number of windows per batch
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
_LEGEND_ENTRIES = 40


@dataclass(frozen=True)
class DrawnScene:
    """One scene: its image, its mask and the prediction."""

    image: Pixels
    truth: Mask
    prediction: NDArray[np.int16]

    @classmethod
    def of(cls, runner: Runner, scenes: Scenes, index: int, protocol: Clean) -> "DrawnScene":
        """Segment a scene in the same way as an evaluation under this protocol."""
        image = scenes.image(index)
        stream = Stream[None](runner, windowing_of(runner.model, protocol))
        [(_, prediction)] = stream.put(None, image) + stream.flush()
        highest = int(prediction.max())
        if highest >= scenes.classes:
            raise BadInputError(
                f"the model predicts class {highest} on '{scenes.name}'",
                expected=f"one of its {scenes.classes} classes",
            )
        return cls(image, scenes.mask(index), prediction)

    def right(self) -> tuple[int, int]:
        """Return (correct pixels, pixels not labelled IGNORE)."""
        counted = self.truth != IGNORE
        return int((self.prediction == self.truth)[counted].sum()), int(counted.sum())

    def row(self, palette: NDArray[np.uint8]) -> list[Pixels]:
        """Return image, mask and prediction."""
        return [self.image, coloured(self.truth, palette), coloured(self.prediction, palette)]


def draw_scenes(model: nn.Module, scenes: Scenes, protocol: Clean) -> Drawing:
    """Draw one row per scene; the summary gives the pixel accuracy.

    Raises:
        BadInputError: the number of classes of the model differs from that of the scenes.
    """
    classes = getattr(model, "classes", scenes.classes)
    if classes != scenes.classes:
        raise BadInputError(
            f"the model has {classes} classes, but '{scenes.name}' has {scenes.classes}", fix="choose other data"
        )
    size = batch_size_for(classes, windowing_of(model, protocol).window, BATCH_SIZE)
    runner = Runner(model, size, device_for(model, None), protocol.draws, presentation=EVERY_PIXEL)
    parts = [DrawnScene.of(runner, scenes, index, protocol) for index in range(len(scenes))]
    counts = [part.right() for part in parts]
    return Drawing(
        rows=[part.row(scenes.palette) for part in parts],
        row_titles=[f"{name}\n{_share([count])}" for name, count in zip(scenes.ids, counts, strict=True)],
        column_titles=["image", "truth", "prediction"],
        legend=legend_of(
            [mask for part in parts for mask in (part.truth, part.prediction)], scenes.class_names, scenes.palette
        ),
        summary=f"{len(scenes)} scenes, {_share(counts)} of the pixels are correct",
    )


def coloured(mask: NDArray[np.integer], palette: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Paint classes, integers (height, width), in their colours; negative values (no class) become black."""
    colours = np.vstack([palette, np.array([BLACK], np.uint8)])
    painted: NDArray[np.uint8] = colours[np.where(mask < 0, len(palette), mask)]
    return painted


def legend_of(
    masks: Iterable[NDArray[np.integer]], names: Sequence[str], palette: NDArray[np.uint8]
) -> list[tuple[str, Colour]]:
    """Return (name, colour) of up to 40 classes with the most pixels in `masks`, in class order, and of black."""
    count: Counter[int] = Counter()
    for mask in masks:
        labels, pixels = np.unique(mask, return_counts=True)
        count.update(dict(zip(labels.tolist(), pixels.tolist(), strict=True)))
    present = sorted(label for label in count if label >= 0)
    listed = sorted(sorted(present, key=lambda label: -count[label])[:_LEGEND_ENTRIES])
    entries = [(names[label], _colour(palette[label])) for label in listed]
    if len(listed) < len(present):
        entries.append((f"({len(present) - len(listed)} rarer ones)", WHITE))
    return entries + ([("ignored", BLACK)] if len(present) < len(count) else [])


def _colour(row: NDArray[np.uint8]) -> Colour:
    red, green, blue = (int(part) for part in row)
    return red, green, blue


def _share(counts: list[tuple[int, int]]) -> str:
    """Return the pixel accuracy over all scenes together, as text."""
    return f"{100 * sum(right for right, _ in counts) / sum(total for _, total in counts):.1f} %"
