"""Metrics of telling unknown classes from known ones, for any column that says how sure a model was."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.metrics import Statistic, Weighted
from robustbench_kpca.metrics.shared.ranking import Ranking
from robustbench_kpca.records.outcomes import Outcomes


def _weighted(outcomes: Outcomes, sureness: str, number: str) -> Weighted:
    ood = outcomes["label"] == 1
    ranking = Ranking.of(-outcomes[sureness], ood)  # what is unsure is taken for unknown

    def value(weights: NDArray[np.int64] | None) -> float:
        return float(getattr(ranking, number)(weights=weights))

    return Weighted(outcomes["sample"], value, ood.astype(np.int64))


def _chance(outcomes: Outcomes, number: str) -> float:
    unknown = float((outcomes["label"] == 1).mean())
    return {"average_precision": unknown, "auroc": 0.5, "fpr_at_tpr": 0.95}[number]


def ranking_metric(number: str, sureness: str, **how: Any) -> Statistic:
    """Return a number of `Ranking` as a metric; `sureness` is the column of outcomes to rank by."""
    return Statistic(
        kinds=("ood",), weighted=partial(_weighted, sureness=sureness, number=number),
        chance=partial(_chance, number=number), **how,
    )  # fmt: skip
