"""Calibration errors as metrics of outcomes that hold confidences."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.metrics import Statistic, Weighted
from robustbench_kpca.metrics.shared.calibration import RMS_BIN
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.outcomes import Outcomes

Error = Callable[..., float]


def _weighted(outcomes: Outcomes, error: Error) -> Weighted:
    confidence, correct = np.clip(outcomes["confidence"], 0, 1), outcomes.correct

    def value(weights: NDArray[np.int64] | None) -> float:
        return error(confidence, correct, weights)

    return Weighted(outcomes["sample"], value)


def calibration_metric(error: Error, *, needs: int = 0, **how: Any) -> Statistic:
    """Return a calibration error as a metric that needs so many bins of 100 images."""

    def applies(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
        return len(outcomes) >= needs * RMS_BIN

    return Statistic(
        kinds=("clean", "shift"), weighted=partial(_weighted, error=error), applies=applies, lower_is_better=True, **how
    )  # fmt: skip
