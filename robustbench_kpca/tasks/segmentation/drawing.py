"""Draw images, their masks, and the predictions of a model, clean and corrupted."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.corrupted import cell_of, corrupted
from robustbench_kpca._engine.inference.runner import Runner, device_for
from robustbench_kpca._engine.inference.sliding_window import EVERY_PIXEL, Stream, batch_size_for
from robustbench_kpca.data.scenes import IGNORE, Mask, Pixels, Scenes
from robustbench_kpca.protocols.scenario import Corruption, Scenario, cells_of
from robustbench_kpca.tasks.drawing import Colour, Drawing
from robustbench_kpca.tasks.segmentation.counts import windowing_of

BATCH_SIZE = 16  # largest number of windows per batch
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
_LEGEND_ENTRIES = 40


@dataclass(frozen=True)
class DrawnScene:
    """One scene: its image in every cell of a protocol, the clean one first, and the prediction for each."""

    images: list[Pixels]
    truth: Mask
    predictions: list[NDArray[np.int16]]

    @classmethod
    def of(cls, runner: Runner, scenes: Scenes, index: int, protocol: Scenario, seed: int, frost: str) -> "DrawnScene":
        """Corrupt and segment a scene in the same way as an evaluation under this protocol."""
        image, truth, images = scenes.image(index), scenes.mask(index), []
        for place in cells_of(protocol):
            cell = cell_of(protocol, place, seed, frost) if isinstance(protocol, Corruption) else None
            storage = protocol.storage if isinstance(protocol, Corruption) else "none"
            images.append(corrupted(image, cell, scenes.ids[index], storage))
        stream = Stream[None](runner, windowing_of(runner.model, protocol))
        answers = [answer for image in images for answer in stream.put(None, image)] + stream.flush()
        predictions = [prediction for _, prediction in answers]
        highest = max(int(prediction.max()) for prediction in predictions)
        if highest >= scenes.classes:
            raise BadInputError(
                f"the model predicts class {highest} on '{scenes.name}'",
                expected=f"one of its {scenes.classes} classes",
            )
        return cls(images, truth, predictions)

    def right(self) -> list[tuple[int, int]]:
        """Return (correct pixels, pixels not labelled IGNORE) of each prediction."""
        counted = self.truth != IGNORE
        return [(int((shown == self.truth)[counted].sum()), int(counted.sum())) for shown in self.predictions]

    def row(self, palette: NDArray[np.uint8]) -> list[Pixels]:
        """Return image, mask and prediction, then each corrupted image with its prediction."""
        (clean, predicted), *others = zip(self.images, self.predictions, strict=True)
        row = [clean, coloured(self.truth, palette), coloured(predicted, palette)]
        return row + [part for image, classes in others for part in (image, coloured(classes, palette))]


def draw_scenes(model: nn.Module, scenes: Scenes, protocol: Scenario, *, seed: int, frost: str) -> Drawing:
    """Draw one row per scene; the summary gives the pixel accuracy, clean and corrupted ("71.0 % → 43.2 %").

    Args:
        protocol: a clean or corruption protocol whose first cell is clean.

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
    parts = [DrawnScene.of(runner, scenes, index, protocol, seed=seed, frost=frost) for index in range(len(scenes))]
    counts = [part.right() for part in parts]
    columns = ["image", "truth", "prediction"]
    for name, severity in cells_of(protocol)[1:]:
        columns += [f"{name} {severity}", "prediction of it"]
    return Drawing(
        title=f"Segmentation of {scenes.name}",
        rows=[part.row(scenes.palette) for part in parts],
        row_titles=[f"{name}\n{_shares([count])}" for name, count in zip(scenes.ids, counts, strict=True)],
        column_titles=columns,
        legend=legend_of(
            [mask for part in parts for mask in (part.truth, *part.predictions)], scenes.class_names, scenes.palette
        ),
        summary=f"{len(scenes)} scenes, {_shares(counts)} of the pixels are correct",
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
    shown = sorted(sorted(present, key=lambda label: -count[label])[:_LEGEND_ENTRIES])
    entries = [(names[label], _colour(palette[label])) for label in shown]
    if len(shown) < len(present):
        entries.append((f"({len(present) - len(shown)} rarer ones)", WHITE))
    return entries + ([("ignored", BLACK)] if len(present) < len(count) else [])


def _colour(row: NDArray[np.uint8]) -> Colour:
    red, green, blue = (int(part) for part in row)
    return red, green, blue


def _shares(counts: list[list[tuple[int, int]]]) -> str:
    """Return the pixel accuracy of each prediction, over all scenes together, as text."""
    shares = [sum(right for right, _ in each) / sum(total for _, total in each) for each in zip(*counts, strict=True)]
    return " → ".join(f"{100 * share:.1f} %" for share in shares)
