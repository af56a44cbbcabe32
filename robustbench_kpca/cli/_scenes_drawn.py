"""A scene is drawn as its image, its classes, and what a model sees in it, clean and corrupted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from robustbench_kpca.corruptions import require_profile
from robustbench_kpca.data.scenes import IGNORE, Mask, Pixels, Scenes
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.api import prepare
from robustbench_kpca.evaluation.compatibility import cell_of
from robustbench_kpca.evaluation.segmentation import windowing_of
from robustbench_kpca.evaluation.trial import runner_for
from robustbench_kpca.inference.loader import pictures
from robustbench_kpca.inference.runner import Runner, device_for
from robustbench_kpca.inference.sliding_window.windows import batch_size_for, segment
from robustbench_kpca.protocols.scenario import Segmentation, parse_scenario
from robustbench_kpca.report.pictures import Legend, coloured, grid, legend_of, page

CELL_WIDTH = 2.6  # inches
BATCH_SIZE = 16  # windows, at most
_NOT_DRAWN = ("clean", "corruptions", "severities")


def to_draw(protocol: str, overrides: dict[str, Any], grid: Sequence[tuple[str, int]]) -> Segmentation:
    """Return a protocol of segmentation that is to measure the images as they are, and the cells of `grid` alone.

    Raises:
        BadInputError: no protocol of segmentation, or one that cannot make such pictures; an override of its cells.

    """
    odd = next((key for key in overrides if key in _NOT_DRAWN), None)
    if odd is not None:
        raise BadInputError(f"--set {odd}", expected="--corruption and --severity: drawn is one, beside the clean")
    label, asked = prepare(protocol, overrides)
    if not isinstance(asked, Segmentation):
        raise BadInputError(
            f"protocol '{label}' ({asked.kind})", expected="one of segmentation", fix="choose 'segmentation', say"
        )
    cells = [{"corruptions": [name], "severities": [severity]} for name, severity in grid]
    fields = asked.model_dump(mode="json") | {"clean": True, "grid": cells}
    scenario = parse_scenario(fields, f"protocol '{label}'")
    assert isinstance(scenario, Segmentation)
    for name in scenario.corruptions:
        require_profile(name, scenario.profile)
    return scenario


@dataclass(frozen=True)
class Drawn:
    """One scene: its image in every cell of a protocol, the clean one first, and a prediction of each."""

    images: list[Pixels]
    truth: Mask
    predictions: list[NDArray[np.int16]]

    @classmethod
    def of(cls, runner: Runner, scenes: Scenes, index: int, scenario: Segmentation, seed: int, frost: str) -> "Drawn":
        """Corrupt and segment a scene as an evaluation under this protocol does."""
        cells = [cell_of(scenario, place, seed, frost) for place in scenario.cells]
        made = [next(pictures(scenes, [index], cell=cell, storage=scenario.storage)) for cell in cells]
        images, truth = [image for _, image, _ in made], made[0][2]
        predictions = [
            segment(
                runner, image, window=scenario.window, stride=scenario.stride, scales=scenario.scales,
                flip=scenario.flip, resize=scenario.resize,
            )
            for image in images
        ]  # fmt: skip
        highest = max(int(prediction.max()) for prediction in predictions)
        if highest >= scenes.classes:
            raise BadInputError(
                f"the model sees class {highest} in '{scenes.name}'", expected=f"one of its {scenes.classes} classes"
            )
        return cls(images, truth, predictions)

    def right(self) -> list[tuple[int, int]]:
        """Count pixels whose class is right, and all that count, of each prediction."""
        counted = self.truth != IGNORE
        return [(int((shown == self.truth)[counted].sum()), int(counted.sum())) for shown in self.predictions]

    def row(self, palette: NDArray[np.uint8]) -> list[Pixels]:
        """Image, classes, prediction, and the corrupted image with its prediction."""
        (clean, seen), *corrupted = zip(self.images, self.predictions, strict=True)
        row = [clean, coloured(self.truth, palette), coloured(seen, palette)]
        return row + [part for image, shown in corrupted for part in (image, coloured(shown, palette))]


def drawn(
    model: nn.Module, scenes: Scenes, scenario: Segmentation, *, seed: int, frost: str, html: bool
) -> tuple[bytes, str]:
    """Draw every scene in a row; return the picture, and how many pixels are right ("71.0 % → 43.2 %").

    `frost` is what `frost_of` returns.
    """
    classes = getattr(model, "classes", scenes.classes)
    if classes != scenes.classes:
        raise BadInputError(
            f"a model of {classes} classes for '{scenes.name}', which has {scenes.classes}", fix="choose other data"
        )
    size = batch_size_for(classes, windowing_of(model, scenario).window, BATCH_SIZE)
    runner = runner_for(model, scenario, size, device_for(model, None))
    parts = [Drawn.of(runner, scenes, index, scenario, seed, frost) for index in range(len(scenes))]
    rows = [part.row(scenes.palette) for part in parts]
    counts = [part.right() for part in parts]
    titles = [f"{name}\n{_shares([count])}" for name, count in zip(scenes.ids, counts, strict=True)]
    columns = ["image", "truth", "prediction"]
    for name, severity in scenario.cells[1:]:
        columns += [f"{name} {severity}", "prediction of it"]
    masks = [mask for part in parts for mask in (part.truth, *part.predictions)]
    legend = legend_of(masks, scenes.class_names, scenes.palette)
    return _render(rows, titles, columns, legend, scenes.name, html=html), _shares(counts)


def _render(
    rows: list[list[Pixels]], titles: list[str], columns: list[str], legend: Legend, name: str, *, html: bool
) -> bytes:
    if html:
        return page(rows, titles, columns, title=f"Segmentation of {name}", legend=legend)
    tallest = max(row[0].shape[0] / row[0].shape[1] for row in rows)
    return grid(rows, titles, columns, cell=(CELL_WIDTH, CELL_WIDTH * min(tallest, 1.5) + 0.1), legend=legend)


def _shares(counts: list[list[tuple[int, int]]]) -> str:
    """Pixels that are right, of all scenes together, in each prediction."""
    shares = [sum(hits for hits, _ in each) / sum(total for _, total in each) for each in zip(*counts, strict=True)]
    return " → ".join(f"{100 * share:.1f} %" for share in shares)
