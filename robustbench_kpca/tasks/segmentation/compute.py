"""Evaluate segmenters by sliding windows; attack, audit and train them with one label per pixel."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.engine import CleanBatch
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.attack_loop.success import Answer
from robustbench_kpca._engine.inference.corrupted import cell_of, corrupted
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.loader import in_batches
from robustbench_kpca._engine.inference.runner import Presentation
from robustbench_kpca._engine.inference.sliding_window import (
    EVERY_PIXEL,
    Windowing,
    batch_size_for,
    first_window,
    own_window,
    through_windows,
)
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.data.io.remembered import Remembered
from robustbench_kpca.data.samples import to_tensor
from robustbench_kpca.data.scenes import Mask, Pixels, Scenes
from robustbench_kpca.metrics.shared.pixels import miou
from robustbench_kpca.protocols.scenario import Attack, Clean, Corruption, Scenario, cells_of
from robustbench_kpca.records.table import COUNTS
from robustbench_kpca.tasks.audit_plan import GAIN, SHARED_ATTACKS, SHARED_WHITE_BOX, SLACK, AuditPlan
from robustbench_kpca.tasks.compute import BATCH_SIZE, Compute, Row
from robustbench_kpca.tasks.drawing import Drawing
from robustbench_kpca.tasks.prepare import require_form
from robustbench_kpca.tasks.segmentation.counts import WHOLE, PixelResults, pixel_counts, windowing_of
from robustbench_kpca.tasks.segmentation.drawing import draw_scenes
from robustbench_kpca.tasks.segmentation.success import FewerRight
from robustbench_kpca.tasks.training import Counts, Training, accuracy
from robustbench_kpca.types import IGNORE, Images, Logits, PerSample

Picture = tuple[int, Pixels, Mask]


class SegmentationTraining(Training):
    """One label per pixel."""

    def losses(self, logits: Logits, targets: Tensor, smoothing: float) -> PerSample:
        """Return the sum of the cross-entropy over the pixels of each image that are not IGNORE.

        Args:
            logits: shape (batch, classes, height, width).
            targets: shape (batch, height, width): classes, or IGNORE.
        """
        losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing, ignore_index=IGNORE)
        return losses.flatten(1).sum(1)

    def score(self, counts: Counts, loss: float) -> dict[str, float]:  # noqa: ARG002
        """Return pixel accuracy and mIoU over all images together; empty if there are no labels."""
        if not counts[1].sum():
            return {}
        return {"accuracy": accuracy(counts), "miou": float(miou(*counts.numpy()))}


class Segmentation(Compute[Scenes]):
    """Semantic segmentation: one label per pixel."""

    success = FewerRight()
    container = PixelResults
    training = SegmentationTraining()
    audit = AuditPlan(
        samples=16,  # few, because every attack uses its whole budget on every sample
        attacks={**SHARED_ATTACKS, **dict.fromkeys(("segpgd", "own-logits"), ("segpgd20-linf-8_255", {"steps": 40}))},
        # Plain cross-entropy is weaker than SegPGD on honest segmenters (Gu et al. 2022, arXiv:2207.12391).
        strongest=("segpgd", "own-logits"),
        white_box=(*SHARED_WHITE_BOX, "segpgd"),
        black_box=("noise",),
        left_out="Square and SPSA do not apply to labels per pixel",
        limits={"slack": SLACK, "gain": GAIN},
    )

    def require_data(self, data: Scenes, protocol: Scenario) -> None:
        """Refuse stored corruptions and reference errors: none are published for segmentation."""
        require_form(data, protocol)
        if isinstance(protocol, Corruption) and (protocol.mode == "stored" or protocol.reference != "none"):
            raise BadInputError(
                f"mode = '{protocol.mode}' and reference = '{protocol.reference}' for data '{data.name}'",
                expected="mode = 'fast' or 'exact', and reference = 'none' for segmentation",
            )

    def match_classes(self, data: Scenes, classes: int, names: Sequence[str] | None) -> tuple[Scenes, str]:  # noqa: ARG002
        """Refuse a segmenter whose number of classes differs from that of the data."""
        if classes != data.classes:
            raise BadInputError(
                f"the model has {classes} classes, but data '{data.name}' has {data.classes}",
                fix="choose a segmenter that was trained on these classes",
            )
        return data, f"{classes} classes, by number"

    def presentation(self, model: nn.Module, kind: str) -> Presentation:
        """Under attack, divide images into windows of the model's size; otherwise the inputs are windows already."""
        window = own_window(model) if kind == "attack" else 0
        return replace(EVERY_PIXEL, show=partial(through_windows, window=window)) if window else EVERY_PIXEL

    def batch_size(self, model: nn.Module, data: Scenes, protocol: Scenario | None) -> int:
        """Return 64, or fewer if the logits of a batch exceed 256 MiB; audits: at most the number of samples."""
        most = min(BATCH_SIZE, len(data)) if protocol is None else BATCH_SIZE
        if protocol is None or isinstance(protocol, Attack):
            return batch_size_for(data.classes, max(own_window(model), *data.size(0)), most)
        return batch_size_for(data.classes, windowing_of(model, protocol).window, most)

    def first_inputs(self, model: nn.Module, data: Scenes, protocol: Scenario | None, count: int) -> Images:
        """Return the upper left window of the first images; in attacks and audits a square of the shorter side."""
        first = [data.image(index) for index in range(min(count, len(data)))]
        if protocol is None or isinstance(protocol, Attack):
            side = min(first[0].shape[:2])
            windowing = Windowing(side, side)
        else:
            windowing = windowing_of(model, protocol)
        return torch.stack([first_window(image, windowing) for image in first])

    def smallest(self, data: Scenes) -> int:
        """Return the index of the smallest image."""
        return min(range(len(data)), key=lambda index: sorted(data.size(index)))

    def shown(
        self, data: Scenes, protocol: Scenario, rows: Sequence[int], *,
        batch_size: int, workers: int | None, seed: int, frost: str,  # noqa: ARG002 (windows of all scenes share batches)
    ) -> Iterator[tuple[list[int], tuple[Pixels, Mask]]]:  # fmt: skip
        """Yield images one by one, corrupted at full resolution, with their masks."""
        fetch = _Grid(data, protocol, seed, frost)
        for row, image, mask in in_batches(fetch, _only, rows, batch_size=1, workers=workers):
            yield [row], (image, mask)

    def batches(
        self, data: Scenes, indices: Sequence[int], batch_size: int, workers: int | None = 0
    ) -> Iterator[CleanBatch]:
        """Yield images of one size with their masks."""
        if indices:
            fetch = partial(_fetch, data)
            yield from in_batches(fetch, _stack, indices, batch_size=batch_size, workers=workers)

    def groups(self, data: Scenes, indices: Sequence[int]) -> list[list[int]]:
        """Group images by their size."""
        return data.by_size(indices)

    def rows(self, sample: Sample, data: Scenes, space: InputSpace) -> list[Row]:  # noqa: ARG002
        """Return the pixel counts of the clean image and of the worst image of each stage.

        The first row of each picture has class -1 and contains totals; then follows one row per class that occurs in
        the mask or the prediction. A stage that found nothing worse than the clean image has no rows.
        """
        truth = _numbers(sample.label)
        rows = _picture(sample.id, 0, "", truth, _numbers(sample.clean_prediction))
        rows[0] |= {name: getattr(sample, name) for name in COUNTS}
        clean = space.leave(sample.clean[None])
        for stage, (image, _, prediction, _, attack) in sorted(sample.found.items()):
            whole, *classes = _picture(sample.id, stage, attack, truth, _numbers(prediction))
            after = space.leave(image[None])
            sizes = {"linf": float(distance(after, clean, "linf")), "l2": float(distance(after, clean, "l2"))}
            rows += [whole | sizes, *classes]
        return rows

    def combined(self, rows: list[Row], smaller: list[Row]) -> list[Row]:
        """Return the rows of each stage's picture with fewer right pixels; picture 0 has the passes of both runs."""
        mine, theirs = (
            {number: list(rows) for number, rows in groupby(part, key=lambda row: row["picture"])}
            for part in (rows, smaller)
        )
        pictures = []
        for number in sorted({*mine, *theirs}):
            choices = [part[number] for part in (mine, theirs) if number in part]
            pictures.append(min(choices, key=lambda picture: int(picture[0]["intersection"])))
        whole, *rest = chain.from_iterable(pictures)
        return [whole | {name: rows[0][name] + smaller[0][name] for name in COUNTS}, *rest]

    def draw(self, model: nn.Module, data: Scenes, protocol: Clean) -> Drawing:
        """Draw images, masks and predictions: see `draw_scenes`."""
        return draw_scenes(model, data, protocol)


COMPUTE = Segmentation()


def _fetch(scenes: Scenes, index: int) -> Picture:
    return index, *_matching(scenes.ids[index], scenes.image(index), scenes.mask(index))


def _matching(name: str, image: Pixels, mask: Mask) -> tuple[Pixels, Mask]:
    if mask.shape != image.shape[:2]:
        raise BadInputError(
            f"the mask of '{name}' is {mask.shape}", expected=f"{image.shape[:2]}, the size of its image"
        )
    return image, mask


class _Grid:
    """Makes rows of the grid: row c * n + i is scene i of n in cell c, corrupted at full resolution."""

    def __init__(self, data: Scenes, protocol: Scenario, seed: int, frost: str) -> None:
        self.data, self.protocol, self.seed, self.frost = data, protocol, seed, frost
        self.places = cells_of(protocol)
        self.images, self.masks = Remembered(data.image), Remembered(data.mask)

    def __call__(self, row: int) -> Picture:
        (cell, index), protocol = divmod(row, len(self.data)), self.protocol
        name = self.data.ids[index]
        image, mask = _matching(name, self.images(index), self.masks(index))
        if isinstance(protocol, Corruption):
            corruption = cell_of(protocol, self.places[cell], self.seed, self.frost)
            image = corrupted(image, corruption, name, protocol.storage)
        return row, image, mask


def _only(items: list[Picture]) -> Picture:
    return items[0]


def _stack(items: list[Picture]) -> CleanBatch:
    index, images, masks = zip(*items, strict=True)
    labels = torch.from_numpy(np.stack(masks)).long()
    return list(index), torch.stack([to_tensor(image) for image in images]), labels


def _picture(
    sample: str, number: int, attack: str, truth: NDArray[np.int16], prediction: NDArray[np.int16]
) -> list[Row]:
    """Return the rows of one picture; the first row is for all classes together."""
    counts = pixel_counts(truth, prediction)
    same = {"sample": sample, "picture": number, "attack": attack, "linf": 0.0, "l2": 0.0, **dict.fromkeys(COUNTS, 0)}
    lines = [(WHOLE, *counts[:, 1:].sum(0).tolist()), *counts.tolist()]
    return [same | dict(zip(("class", "intersection", "truth", "predicted"), line, strict=True)) for line in lines]


def _numbers(answer: Answer) -> NDArray[np.int16]:
    assert isinstance(answer, torch.Tensor)
    return answer.numpy()
