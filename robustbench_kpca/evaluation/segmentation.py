"""Every scene is corrupted once, shown to every segmenter through windows, and counted pixel by pixel."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robustbench_kpca.data.scenes import IGNORE, Scenes
from robustbench_kpca.evaluation.compatibility import cell_of
from robustbench_kpca.evaluation.plain import told
from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.loader import pictures
from robustbench_kpca.inference.runner import Runner
from robustbench_kpca.inference.sliding_window.windows import Prediction, Stream, Windowing
from robustbench_kpca.protocols.scenario import Segmentation
from robustbench_kpca.records.outcomes import Outcomes

Mask = NDArray[np.int16]
Counts = NDArray[np.int64]


def windowing_of(model: nn.Module, scenario: Segmentation) -> Windowing:
    """Return how a protocol has this model look at pictures."""
    return Windowing.of(
        model, scenario.window, scenario.stride,
        scales=scenario.scales, flip=scenario.flip, resize=scenario.resize,
    )  # fmt: skip


def pixel_counts(truth: Mask, prediction: Mask) -> Counts:
    """Count the pixels of one picture; those whose truth is IGNORE count nowhere.

    Args:
        truth: int16, shape (height, width): classes from 0, or IGNORE.
        prediction: classes from 0, or below where the model gave no finite logits: wrong, and predicted as no class.

    Returns:
        Rows (class, hits, truth, predicted), one for each class with truth + predicted > 0: pixels of the class that
        are predicted as it, its pixels, pixels predicted as it.

    """
    known = truth != IGNORE
    true, said = truth[known].astype(np.int64), prediction[known].astype(np.int64)
    counted = true[true == said], true, said[said >= 0]
    classes = 1 + max((int(values.max()) for values in counted if values.size), default=-1)
    counts = [np.bincount(values, minlength=classes) for values in counted]
    seen = np.flatnonzero(counts[1] + counts[2])
    return np.stack([seen, *(count[seen] for count in counts)], 1)


class SceneLane:
    """One segmenter's way through the pictures: what was counted so far, and its journal.

    `begun` and `done` number pictures, cell after cell: those counted by an earlier attempt, and by now. `seconds` is
    its own time and its share of the time that making the pictures took; `forwards` counts windows.
    """

    def __init__(self, name: str, runner: Runner, scenario: Segmentation, journal: Journal | None) -> None:
        self.name, self.runner, self.journal = name, runner, journal
        self.begun = self.done = 0
        self.rows: list[Counts] = []
        self.seconds, self._windows_before = 0.0, 0
        saved = journal.read() if journal else None
        if saved:
            runner.batch_size = min(runner.batch_size, int(saved["batch_size"]))
            self.begun = self.done = int(saved["done"])
            self.rows = [saved["rows"]["counts"].numpy()]
            self._windows_before = int(saved["forwards"])
        self.stream: Stream[tuple[int, Mask]] = Stream(runner, windowing_of(runner.model, scenario))

    @property
    def forwards(self) -> int:
        """Windows of the pictures that are counted, by an earlier attempt or by now."""
        return self._windows_before + self.stream.decided

    def show(self, position: int, image: NDArray[np.uint8], truth: Mask) -> None:
        """Queue a picture, unless it is counted already."""
        if position >= self.begun:
            self._count(lambda: self.stream.put((position, truth), image))

    def finish(self) -> None:
        """Count what is still queued."""
        self._count(self.stream.flush)

    def counts(self) -> Counts:
        """Rows (picture, class, hits, truth, predicted)."""
        return np.concatenate([np.empty((0, 5), np.int64), *self.rows])

    def _count(self, work: Callable[[], list[tuple[tuple[int, Mask], Prediction]]]) -> None:
        started = time.perf_counter()
        for (position, truth), prediction in work():
            own = pixel_counts(truth, prediction)
            self.rows.append(np.insert(own, 0, position, axis=1))
            self.done = position + 1
        self.seconds += time.perf_counter() - started
        if self.journal and self.journal.due():
            self.save()

    def save(self) -> None:
        """Write down what was counted so far."""
        if self.journal and self.done:
            self.rows = [self.counts()]
            content = {"counts": torch.from_numpy(self.rows[0])}
            where = {"done": self.done, "forwards": self.forwards, "batch_size": self.runner.batch_size}
            self.journal.write({"rows": content, **where})


def measure_scenes(
    lanes: Sequence[SceneLane],
    scenes: Scenes,
    scenario: Segmentation,
    *,
    seed: int,
    workers: int,
    frost: str,
    progress: Callable[[int, int], None] | None,
) -> list[Outcomes]:
    """Segment every scene in every cell of the grid with every model; return the outcomes of each.

    `frost` is what `frost_of` returns.
    """
    places = scenario.cells
    begun, total = min(lane.begun for lane in lanes), len(places) * len(scenes)
    for number, place in enumerate(places):
        start = number * len(scenes)
        fresh = range(min(max(begun - start, 0), len(scenes)), len(scenes))
        shown = time.perf_counter()
        for index, image, truth in pictures(
            scenes, fresh, workers=workers, cell=cell_of(scenario, place, seed, frost), storage=scenario.storage
        ):
            share = (time.perf_counter() - shown) / len(lanes)
            for lane in lanes:
                lane.seconds += share
                with told(lane, lanes):
                    lane.show(start + index, image, truth)
            shown = time.perf_counter()
            if progress is not None:
                progress(start + index + 1, total)
    for lane in lanes:
        with told(lane, lanes):
            lane.finish()
    return [_outcomes(lane.counts(), scenes, places) for lane in lanes]


def _outcomes(counts: Counts, scenes: Scenes, places: Sequence[tuple[str, int]]) -> Outcomes:
    picture, label, hits, truth, predicted = counts.T
    cell = picture // len(scenes)
    return Outcomes.from_columns(
        "segmentation",
        {
            "sample": np.array(scenes.ids, dtype=object)[picture % len(scenes)],
            "corruption": np.array([name for name, _ in places], dtype=object)[cell],
            "severity": np.array([severity for _, severity in places])[cell],
            "class": label,
            "hits": hits,
            "truth": truth,
            "predicted": predicted,
        },
    )
