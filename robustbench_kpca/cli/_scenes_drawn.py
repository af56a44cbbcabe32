"""A scene is drawn as its image, its classes, and what a model sees in it, clean and corrupted."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from robustbench_kpca.corruptions import Cell, corrupt_one
from robustbench_kpca.data._scenes import IGNORE, Mask, Pixels, Scenes
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.windows import segment
from robustbench_kpca.report.pictures import Legend, coloured, grid, legend_of, page

CELL_WIDTH = 2.6  # inches


@dataclass(frozen=True)
class Drawn:
    """One scene: its images, clean and corrupted if asked for, and a prediction of each."""

    images: list[Pixels]
    truth: Mask
    predictions: list[NDArray[np.int16]]

    @classmethod
    def of(cls, model: nn.Module, scenes: Scenes, index: int, cell: Cell | None, **windows: Any) -> "Drawn":
        """Corrupt and segment a scene as an evaluation does, through `windows` as `segment` has them."""
        image, truth = scenes.image(index), scenes.mask(index)
        images = [image] if cell is None else [image, corrupt_one(image, cell, scenes.ids[index])]
        predictions = [segment(model, shown, **windows) for shown in images]
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


def drawn(model: nn.Module, scenes: Scenes, cell: Cell | None, *, html: bool, **windows: Any) -> tuple[bytes, str]:
    """Draw every scene in a row; return the picture, and how many pixels are right ("71.0 % → 43.2 %")."""
    classes = getattr(model, "classes", scenes.classes)
    if classes != scenes.classes:
        raise BadInputError(
            f"a model of {classes} classes for '{scenes.name}', which has {scenes.classes}", fix="choose other data"
        )
    parts = [Drawn.of(model, scenes, index, cell, **windows) for index in range(len(scenes))]
    rows = [part.row(scenes.palette) for part in parts]
    counts = [part.right() for part in parts]
    titles = [f"{name}\n{_shares([count])}" for name, count in zip(scenes.ids, counts, strict=True)]
    columns = ["image", "truth", "prediction"]
    if cell is not None:
        columns += [f"{cell.corruption} {cell.severity}", "prediction of it"]
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
