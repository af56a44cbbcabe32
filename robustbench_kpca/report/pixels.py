"""A segmenter's record cell by cell and class by class: accuracies, mIoU, and the IoU of every class."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from robustbench_kpca.metrics.shared.alexnet import canonical
from robustbench_kpca.metrics.shared.bootstrap import bootstrap
from robustbench_kpca.metrics.shared.pixels import Measure, Tally, mean_accuracy, miou, pixel_accuracy
from robustbench_kpca.metrics.shared.segmentation import shares
from robustbench_kpca.protocols.scenario import CLEAN_CELL
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.outcomes import Outcomes

MEASURES: dict[str, Measure] = {
    "pixel_accuracy": pixel_accuracy,
    "mean_accuracy": mean_accuracy,
    "miou": miou,
}


def cells(outcomes: Outcomes) -> list[dict[str, Any]]:
    """One entry per cell: its metrics in [0, 1], and IoU by class, None for classes neither true nor predicted."""
    tally = Tally.of(outcomes)
    values = {name: tally.levels(measure).tolist() for name, measure in MEASURES.items()}
    by_class = [[None if math.isnan(value) else value for value in row] for row in tally.ious().tolist()]
    return [
        {"corruption": name, "severity": severity}
        | {metric: levels[at] for metric, levels in values.items()}
        | {"iou": by_class[at]}
        for at, (name, severity) in enumerate(tally.cells)
    ]


def classes(outcomes: Outcomes, names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per class, in percent: its share of the pixels, and its IoU clean, corrupted (mean) and under attack.

    Rows are called by their class's name, where `names` are given (`DataInfo.class_names`), else by its number; classes
    that occur nowhere, after the last that does, have a row only where there are names.
    """
    tallies = {}
    if outcomes.kind == "segmentation-attack":
        tallies = {"clean IoU": Tally.clean(outcomes), "attacked IoU": Tally.attacked(outcomes)}
    else:
        whole = Tally.of(outcomes)
        corrupted = [cell for cell in whole.cells if cell[0] != CLEAN_CELL]
        if len(corrupted) < len(whole.cells):
            tallies["clean IoU"] = Tally.clean(outcomes)
        if corrupted:
            tallies["corrupted IoU"] = whole.part(corrupted)
    truth = next(iter(tallies.values())).counts[0, 1].sum(0)
    columns = {"pixels": truth / truth.sum()}
    for title, tally in tallies.items():
        share = shares(tally.cells) if title == "corrupted IoU" else np.ones(1)
        columns[title] = np.tensordot(share, tally.ious(), 1)
    most = max(len(names or ()), *(len(column) for column in columns.values()))
    padded = {
        title: np.pad(column, (0, most - len(column)), constant_values=np.nan) for title, column in columns.items()
    }
    called = range(most) if names is None else names
    return 100 * pd.DataFrame(padded, index=pd.Index(called, name="class"))


def errors(outcomes: Outcomes) -> pd.DataFrame:
    """One row per corruption: 1 - mIoU at each severity, NaN where not measured, and their mean."""
    tally = Tally.of(outcomes)
    found = {cell: 1 - level for cell, level in zip(tally.cells, tally.levels(miou).tolist(), strict=True)}
    names = canonical(name for name, _ in tally.cells if name != CLEAN_CELL)
    severities = sorted({severity for _, severity in tally.cells} - {0})
    columns = {str(level): [found.get((name, level), math.nan) for name in names] for level in severities}
    table = pd.DataFrame(columns, index=pd.Index(names, name="corruption"), dtype=float)
    return table.assign(mean=table.mean(axis=1))


def along_severity(outcomes: Outcomes) -> dict[int, Estimate]:
    """MIoU by severity, over the corruptions measured there; severity 0 is the images as they are."""
    whole = Tally.of(outcomes)
    severities = sorted({severity for _, severity in whole.cells})
    return {level: _mean(whole.part([cell for cell in whole.cells if cell[1] == level])) for level in severities}


def _mean(tally: Tally) -> Estimate:
    low, high = bootstrap(
        lambda weights: float(tally.levels(miou, weights[None]).mean()),
        len(tally.samples),
        many=lambda weights: tally.levels(miou, weights).mean(1),
    )
    return Estimate(float(tally.levels(miou).mean()), low, high, len(tally.samples), "bootstrap")
