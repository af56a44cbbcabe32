"""Tables of a segmenter's records: accuracies and mIoU per cell, the IoU of every class; and their rules."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robustbench_kpca.metrics.shared import pixels
from robustbench_kpca.metrics.shared.bootstrap import Resampled, bootstraps
from robustbench_kpca.protocols.corruption_names import canonical
from robustbench_kpca.protocols.scenario import CLEAN_CELL, Attack, Scenario
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks.facts import Rule, first
from robustbench_kpca.tasks.pages import Pages
from robustbench_kpca.tasks.rules import COMMON

WHOLE = -1
"""Class of the row of all classes together."""


def pixels_fit(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that right pixels are among those of the class and among those predicted as the class."""
    outcomes = record.outcomes
    wrong = outcomes["intersection"] > np.minimum(outcomes["truth"], outcomes["predicted"])
    wrong |= (outcomes["intersection"] < 0) | (outcomes["class"] < WHOLE)
    wrong |= outcomes["class"] >= record.spec.data.classes
    return first(
        outcomes, wrong, "class {class}: {intersection} right pixels of {truth} true and {predicted} predicted ones"
    )


def never_better(record: Record, scenario: Scenario) -> str | None:
    """Check that no picture of a stage has more right pixels than the clean image."""
    if not isinstance(scenario, Attack):
        return None
    outcomes = record.outcomes
    whole = outcomes["class"] == WHOLE
    clean = {
        sample: right
        for sample, right, picture, row in zip(
            outcomes["sample"].tolist(),
            outcomes["intersection"].tolist(),
            outcomes["picture"].tolist(),
            whole.tolist(),
            strict=True,
        )
        if row and picture == 0
    }
    samples = outcomes["sample"].tolist()
    limit = np.array([clean.get(sample, -1) for sample in samples])
    wrong = whole & (outcomes["picture"] > 0) & (outcomes["intersection"] > limit)
    return first(outcomes, wrong, "picture {picture} has more right pixels than the clean image")


RULES: Mapping[str, Rule] = {**COMMON, "pixels-fit": pixels_fit, "never-better": never_better}


MEASURES: dict[str, pixels.Measure] = {
    "pixel_accuracy": pixels.pixel_accuracy,
    "mean_accuracy": pixels.mean_accuracy,
    "miou": pixels.miou,
}


class SegmentationPages(Pages):
    """MIoU and 1 - mIoU."""

    quantity = "mIoU"
    error = "1 - mIoU"
    error_title = "1 - mIoU"
    rules = RULES

    def clean_answers(self, record: Record) -> tuple[Outcomes, NDArray[np.int64]] | None:
        """Return the rows of clean scenes, and the right pixels of each."""
        outcomes = record.outcomes
        attacked = "picture" in outcomes.columns
        rows = (outcomes["picture"] == 0) & (outcomes["class"] == WHOLE) if attacked else outcomes["severity"] == 0
        outcomes = outcomes.where(rows)
        return (outcomes, outcomes["intersection"]) if len(outcomes) else None

    def cells(self, record: Record) -> list[dict[str, Any]]:
        """Return the metrics of each cell in [0, 1], and the IoU per class; None for classes that do not occur."""
        counts = pixels.PixelCounts.of(record.outcomes)
        values = {name: counts.levels(measure).tolist() for name, measure in MEASURES.items()}
        by_class = [[None if math.isnan(value) else value for value in row] for row in counts.ious().tolist()]
        return [
            {"corruption": name, "severity": severity}
            | {metric: levels[at] for metric, levels in values.items()}
            | {"iou": by_class[at]}
            for at, (name, severity) in enumerate(counts.cells)
        ]

    def by_corruption(self, record: Record) -> pd.DataFrame:
        """Return per corruption, in percent: 1 - mIoU at each severity, NaN where not measured, and their mean."""
        return 100 * _errors(record.outcomes)

    def along_severity(self, record: Record) -> dict[int, Estimate]:
        """Return mIoU by severity, averaged over the corruptions evaluated there; 0: clean images."""
        whole = pixels.PixelCounts.of(record.outcomes)
        severities = sorted({severity for _, severity in whole.cells})
        return {level: _mean(whole.part([cell for cell in whole.cells if cell[1] == level])) for level in severities}

    def by_class(self, record: Record) -> pd.DataFrame:
        """Return per class, in percent: its share of the pixels, and its IoU clean, corrupted (mean) and under attack.

        Rows have the names of the classes if the data has names, else their numbers. Without names, the table ends at
        the last class that occurs.
        """
        names = record.spec.data.class_names
        counts = _counts_by_situation(record.outcomes)
        truth = next(iter(counts.values())).counts[0, 1].sum(0)
        columns = {"pixels": truth / truth.sum()}
        for title, counted in counts.items():
            share = pixels.shares(counted.cells) if title == "corrupted IoU" else np.ones(1)
            columns[title] = np.tensordot(share, counted.ious(), 1)
        most = max(len(names or ()), *(len(column) for column in columns.values()))
        padded = {
            title: np.pad(column, (0, most - len(column)), constant_values=np.nan) for title, column in columns.items()
        }
        labels = range(most) if names is None else names
        return 100 * pd.DataFrame(padded, index=pd.Index(labels, name="class"))


def _counts_by_situation(outcomes: Outcomes) -> dict[str, pixels.PixelCounts]:
    """Return the pixel counts by column of the table of classes: clean, corrupted and attacked images."""
    if outcomes.kind == "attack":
        return {"clean IoU": pixels.PixelCounts.clean(outcomes), "attacked IoU": pixels.PixelCounts.attacked(outcomes)}
    whole = pixels.PixelCounts.of(outcomes)
    corrupted = [cell for cell in whole.cells if cell[0] != CLEAN_CELL]
    situations = {}
    if len(corrupted) < len(whole.cells):
        situations["clean IoU"] = pixels.PixelCounts.clean(outcomes)
    if corrupted:
        situations["corrupted IoU"] = whole.part(corrupted)
    return situations


def _errors(outcomes: Outcomes) -> pd.DataFrame:
    """Return per corruption 1 - mIoU at each severity (NaN if not evaluated), and their mean."""
    counts = pixels.PixelCounts.of(outcomes)
    errors = {cell: 1 - level for cell, level in zip(counts.cells, counts.levels(pixels.miou).tolist(), strict=True)}
    names = canonical(name for name, _ in counts.cells if name != CLEAN_CELL)
    severities = sorted({severity for _, severity in counts.cells} - {0})
    columns = {str(level): [errors.get((name, level), math.nan) for name in names] for level in severities}
    table = pd.DataFrame(columns, index=pd.Index(names, name="corruption"), dtype=float)
    return table.assign(mean=table.mean(axis=1))


def _mean(counts: pixels.PixelCounts) -> Estimate:
    mean = Resampled(
        lambda weights: float(counts.levels(pixels.miou, weights[None]).mean()),
        lambda weights: counts.levels(pixels.miou, weights).mean(1),
    )
    [(low, high)] = bootstraps([mean], len(counts.samples))
    return Estimate(float(counts.levels(pixels.miou).mean()), low, high, len(counts.samples), "bootstrap")


PAGES = SegmentationPages()
