"""From a segmenter, scenes and an attack to the pixel counts of every worst picture; interruptible at any moment."""

from collections.abc import Callable, Iterator
from itertools import chain, groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robustbench_kpca.attack_loop.engine import CleanBatch, Engine
from robustbench_kpca.attack_loop.pool import Sample
from robustbench_kpca.attack_loop.success import Answer
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.data.samples import to_tensor
from robustbench_kpca.data.scenes import Scenes
from robustbench_kpca.evaluation.measure import run_journalled
from robustbench_kpca.evaluation.plain import Progress
from robustbench_kpca.evaluation.segmentation import pixel_counts
from robustbench_kpca.inference.input_space import Space
from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.loader import pictures
from robustbench_kpca.inference.runner import Runner
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.outcomes import COUNTS, Outcomes
from robustbench_kpca.types import Images, Labels

Row = dict[str, Any]
WHOLE = -1
"""In place of a class: the row about all pixels of a picture."""


def measure_dense(
    runner: Runner,
    scenes: Scenes,
    scenario: Attack,
    *,
    seed: int,
    workers: int,
    journal: Journal | None,
    progress: Progress | None,
    keep: Callable[[Sample], None] | None = None,
    carried: Outcomes | None = None,
) -> Outcomes:
    """Attack every scene; `keep` sees each one as it is decided, with its worst picture.

    Each stage's picture is the one with the fewest right pixels that it showed to the model, in any restart and
    iteration, confirmed by a plain forward pass; a stage that found none worse than the clean one has none. With
    budgets `below`, the pictures there count here, too; `carried` are the outcomes at the next smaller one, which are
    measured first where not given.

    Returns:
        Outcomes of kind "segmentation-attack": of each scene its pictures, the clean one first, and of each picture one
        row of class -1 with totals, then one for each class that it has or is said to have.

    Raises:
        BadInputError: a protocol or an attack that knows no labels of pixels.

    """
    if scenario.below and carried is None:
        smaller = scenario.smaller()
        part = journal.part(f"{smaller.eps:g}") if journal else None
        how: dict[str, Any] = {"seed": seed, "workers": workers, "journal": part, "progress": None, "keep": keep}
        carried = measure_dense(runner, scenes, smaller, **how)
        if part:
            done = dict(enumerate(_by_scene(carried)))
            part.write({"undecided": [], "rows": done, "batch_size": runner.batch_size})
    before = [] if carried is None else _by_scene(carried)
    rows: dict[int, list[Row]] = {}
    space = Space.of(runner.model, scenario.space)

    def sink(sample: Sample) -> None:
        found = _rows(sample, space)
        rows[sample.index] = _worse(found, before[sample.index]) if before else found
        if keep is not None:
            keep(sample)
        if progress is not None:
            progress(len(rows), len(scenes))

    engine = Engine(runner, scenario, scenes.ids, seed, sink)
    run_journalled(
        engine, rows, journal, lambda fresh: _batches(scenes, fresh, runner.batch_size, workers), scenes.by_size
    )
    return Outcomes.from_rows("segmentation-attack", [row for index in range(len(scenes)) for row in rows[index]])


def scene_batch(scenes: Scenes, count: int) -> tuple[Images, Labels]:
    """Return the first scenes, those of the size of the very first: images in [0, 1], every pixel's class or IGNORE."""
    alike = scenes.by_size(range(min(count, len(scenes))))[0]
    _, images, labels = next(_batches(scenes, alike, count, 0))
    return images, labels


def _batches(scenes: Scenes, indices: list[int], batch_size: int, workers: int) -> Iterator[CleanBatch]:
    batch: list[tuple[int, NDArray[np.uint8], NDArray[np.int16]]] = []
    for picture in pictures(scenes, indices, workers=workers):
        batch.append(picture)
        if len(batch) == batch_size or picture[0] == indices[-1]:
            index, images, masks = zip(*batch, strict=True)
            labels = torch.from_numpy(np.stack(masks)).long()
            yield list(index), torch.stack([to_tensor(image) for image in images]), labels
            batch = []


def _rows(sample: Sample, space: Space) -> list[Row]:
    """Count the pixels of the clean picture and of each stage's."""
    truth = _numbers(sample.label)
    rows = _picture(sample.id, 0, "", truth, _numbers(sample.clean_prediction))
    rows[0] |= {name: getattr(sample, name) for name in COUNTS}
    clean = space.leave(sample.clean[None])
    for stage, (image, _, prediction, attack) in sorted(sample.found.items()):
        whole, *classes = _picture(sample.id, stage, attack, truth, _numbers(prediction))
        after = space.leave(image[None])
        sizes = {"linf": float(distance(after, clean, "linf")), "l2": float(distance(after, clean, "l2"))}
        rows += [whole | sizes, *classes]
    return rows


def _picture(sample: str, number: int, attack: str, truth: NDArray[np.int16], said: NDArray[np.int16]) -> list[Row]:
    """Return the rows of one picture, that of all classes first."""
    counts = pixel_counts(truth, said)
    same = {"sample": sample, "picture": number, "attack": attack, "linf": 0.0, "l2": 0.0, **dict.fromkeys(COUNTS, 0)}
    lines = [(WHOLE, *counts[:, 1:].sum(0).tolist()), *counts.tolist()]
    return [same | dict(zip(("class", "hits", "truth", "predicted"), line, strict=True)) for line in lines]


def _by_scene(outcomes: Outcomes) -> list[list[Row]]:
    return [list(rows) for _, rows in groupby(outcomes.rows(), key=lambda row: row["sample"])]


def _worse(found: list[Row], before: list[Row]) -> list[Row]:
    """Return, of each stage, the rows of the worse picture; what both cost is with the clean one."""
    mine, theirs = (
        {number: list(rows) for number, rows in groupby(part, key=lambda row: row["picture"])}
        for part in (found, before)
    )
    pictures = []
    for number in sorted({*mine, *theirs}):
        choices = [part[number] for part in (mine, theirs) if number in part]
        pictures.append(min(choices, key=lambda picture: int(picture[0]["hits"])))
    whole, *rows = chain.from_iterable(pictures)
    return [whole | {name: found[0][name] + before[0][name] for name in COUNTS}, *rows]


def _numbers(answer: Answer) -> NDArray[np.int16]:
    assert isinstance(answer, torch.Tensor)
    return answer.numpy()
