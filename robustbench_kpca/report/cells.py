"""A corruption record cell by cell: accuracies with their intervals, errors by corruption and group, CE.

What is 1 - top-1 accuracy of classifiers is 1 - mIoU of segmenters: see `pixels`.
"""

from typing import Any

import pandas as pd

from robustbench_kpca.metrics.shared.alexnet import counted
from robustbench_kpca.metrics.shared.corruption_errors import (
    ALEXNET,
    corruption_errors,
    mean_by_group,
    mean_errors,
    relative_corruption_errors,
)
from robustbench_kpca.metrics.shared.grid import grid_of
from robustbench_kpca.protocols.scenario import Corruption, parse_scenario
from robustbench_kpca.records.estimate import Estimate, mean
from robustbench_kpca.records.record import Record
from robustbench_kpca.report import pixels


def cells(record: Record) -> list[dict[str, Any]]:
    """One entry per cell: corruption, severity, top-1 and top-5 accuracy in [0, 1] with Wilson intervals.

    Of segmenters: pixel accuracy, mean accuracy and mIoU in [0, 1], and IoU by class.
    """
    if record.outcomes.kind == "segmentation":
        return pixels.cells(record.outcomes)
    top1, top5 = (grid_of(record.outcomes, top).top1() for top in (1, 5))
    return [
        {"corruption": name, "severity": severity, "top1": found.__dict__, "top5": top5[name, severity].__dict__}
        for (name, severity), found in top1.items()
    ]


def by_corruption(record: Record) -> pd.DataFrame:
    """One row per corruption, in percent: error at each severity, their mean and, where AlexNet is asked for, CE."""
    if record.outcomes.kind == "segmentation":
        return 100 * pixels.errors(record.outcomes)
    grid = grid_of(record.outcomes)
    table = grid.table(record.spec.model.name)
    columns = {str(level): [table.cells[name, level] for name in grid.corruptions] for level in grid.severities}
    columns["mean"] = list(mean_errors(table).values())
    scenario = parse_scenario(dict(record.spec.protocol.resolved), record.spec.protocol.name)
    if isinstance(scenario, Corruption) and scenario.reference == "alexnet":
        known = [ALEXNET.knows(name, grid.severities) for name in grid.corruptions]
        if all(known):  # of the extra corruptions only means over five severities are published
            columns["CE"] = list(corruption_errors(table, ALEXNET).values())
            if scenario.clean:
                columns["relative CE"] = list(relative_corruption_errors(table, ALEXNET).values())
    return 100 * pd.DataFrame(columns, index=pd.Index(grid.corruptions, name="corruption"))


def by_group(record: Record) -> dict[str, float]:
    """Mean error in [0, 1] by group: noise, blur, weather, digital, extra, other."""
    if record.outcomes.kind == "segmentation":
        return mean_by_group({str(name): value for name, value in pixels.errors(record.outcomes)["mean"].items()})
    return mean_by_group(mean_errors(grid_of(record.outcomes).table(record.spec.model.name)))


def along_severity(record: Record) -> dict[int, Estimate]:
    """Top-1 accuracy or mIoU by severity, over all corruptions; severity 0 is the images as they are."""
    if record.outcomes.kind == "segmentation":
        return pixels.along_severity(record.outcomes)
    grid = grid_of(record.outcomes)
    clean = {} if grid.clean_wrong is None else {0: mean((~grid.clean_wrong).astype(float))}
    meant = [at for at, name in enumerate(grid.corruptions) if name in counted(grid.corruptions)]
    levels = enumerate(grid.severities)
    return clean | {level: mean(1 - grid.wrong[:, meant, at].mean(axis=1)) for at, level in levels}
