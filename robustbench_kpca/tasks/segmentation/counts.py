"""Pixel counts of a segmenter's predictions: one row per image and class."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca._engine.inference.sliding_window import Prediction, Stream, Windowing
from robustbench_kpca.data.scenes import IGNORE, Mask, Pixels, Scenes
from robustbench_kpca.protocols.scenario import Clean, Corruption, Scenario, cells_of
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.tasks.results import ModelResults
from robustbench_kpca.tasks.segmentation import TASK

Counts = NDArray[np.int64]
WHOLE = -1
"""Class number of the row for all pixels of an image."""


def windowing_of(model: nn.Module, protocol: Scenario | None) -> Windowing:
    """Return the sliding-window settings: those of `[inference]`, else the model's window without overlap.

    Raises:
        BadInputError: the window of the model is needed but unknown.
    """
    requested = protocol.inference if isinstance(protocol, Clean | Corruption) else None
    if requested is None:
        return Windowing.of(model, 0, 0)
    return Windowing.of(model, requested.window, requested.stride, requested.resize)


def pixel_counts(truth: Mask, prediction: Mask) -> Counts:
    """Count the pixels of one image; pixels labelled IGNORE are excluded.

    Args:
        truth: int16, shape (height, width): classes from 0, or IGNORE.
        prediction: classes from 0; negative where logits were not finite, which is wrong and no class.

    Returns:
        Rows (class, intersection, truth, predicted), one per class with truth + predicted > 0: correctly predicted
        pixels of the class, pixels of the class, pixels predicted as the class.
    """
    labelled = truth != IGNORE
    true, predicted = truth[labelled].astype(np.int64), prediction[labelled].astype(np.int64)
    counted = true[true == predicted], true, predicted[predicted >= 0]
    classes = 1 + max((int(values.max()) for values in counted if values.size), default=-1)
    counts = [np.bincount(values, minlength=classes) for values in counted]
    present = np.flatnonzero(counts[1] + counts[2])
    return np.stack([present, *(count[present] for count in counts)], 1)


class PixelResults(ModelResults):
    """Rows (picture, class, intersection, truth, predicted); pictures are numbered cell by cell."""

    def __init__(self, name: str, runner: Runner, scenes: Scenes, protocol: Scenario, journal: Journal | None) -> None:
        super().__init__(name, runner, journal)
        self.scenes, self.protocol, self.table = scenes, protocol, TASK.table(protocol.kind)
        self.done = self.begun
        self.rows: list[Counts] = [self.saved["rows"]["counts"].numpy()] if self.saved else []
        self._windows_before = int(self.saved.get("forwards", 0))
        self.stream: Stream[tuple[int, Mask]] = Stream(runner, windowing_of(runner.model, protocol))

    @property
    def forwards(self) -> int:
        """Number of windows of all finished pictures."""
        return self._windows_before + self.stream.decided

    def show(self, first: int, batch: tuple[Pixels, Mask]) -> None:
        """Queue one picture, unless it is finished already."""
        image, truth = batch
        if first >= self.begun:
            self._count(lambda: self.stream.put((first, truth), image))

    def finish(self) -> None:
        """Evaluate the pictures that are still queued."""
        self._count(self.stream.flush)

    def content(self) -> tuple[int, dict[str, Any]]:
        """Return the number of finished pictures, and their rows."""
        self.rows = [self._counts()]
        return self.done, {"counts": torch.from_numpy(self.rows[0])}

    def outcomes(self) -> Outcomes:
        """Return one row per picture and class that occurs in the mask or the prediction."""
        picture, label, intersection, truth, predicted = self._counts().T
        places, cell = cells_of(self.protocol), picture // len(self.scenes)
        return Outcomes.from_columns(
            self.table,
            {
                "sample": np.array(self.scenes.ids, dtype=object)[picture % len(self.scenes)],
                "corruption": np.array([name for name, _ in places], dtype=object)[cell],
                "severity": np.array([severity for _, severity in places])[cell],
                "class": label,
                "intersection": intersection,
                "truth": truth,
                "predicted": predicted,
            },
        )

    def _counts(self) -> Counts:
        return np.concatenate([np.empty((0, 5), np.int64), *self.rows])

    def _count(self, work: Callable[[], list[tuple[tuple[int, Mask], Prediction]]]) -> None:
        with self.timed():
            for (position, truth), prediction in work():
                counts = pixel_counts(truth, prediction)
                self.rows.append(np.insert(counts, 0, position, axis=1))
                self.done = position + 1
