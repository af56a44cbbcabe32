"""Outcomes of an attacked scene: pixel counts of the clean image and of the worst image of each stage."""

from itertools import chain, groupby

import numpy as np
import torch
from numpy.typing import NDArray

from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.attack_loop.success import Answer
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.records.table import COUNTS
from robustbench_kpca.tasks.compute import Row
from robustbench_kpca.tasks.segmentation.counts import WHOLE, pixel_counts


def rows_of(sample: Sample, space: InputSpace) -> list[Row]:
    """Return the pixel counts of the clean image and of the worst image of each stage.

    The first row of each picture has class -1 and contains totals; then follows one row per class that occurs in the
    mask or the prediction. A stage that found nothing worse than the clean image has no rows.
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


def worse_of(own: list[Row], before: list[Row]) -> list[Row]:
    """Return, per stage, the rows of the picture with fewer correct pixels; picture 0 has the passes of both runs."""
    mine, theirs = (
        {number: list(rows) for number, rows in groupby(part, key=lambda row: row["picture"])} for part in (own, before)
    )
    pictures = []
    for number in sorted({*mine, *theirs}):
        choices = [part[number] for part in (mine, theirs) if number in part]
        pictures.append(min(choices, key=lambda picture: int(picture[0]["intersection"])))
    whole, *rows = chain.from_iterable(pictures)
    return [whole | {name: own[0][name] + before[0][name] for name in COUNTS}, *rows]


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
