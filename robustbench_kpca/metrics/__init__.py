"""The metrics, one file each: functions of outcomes, so every number can be recomputed without model or torch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.estimate import Estimate, Values, mean
from robustbench_kpca.outcomes import Kind, Outcomes
from robustbench_kpca.registry import Family

METRICS = Family("metric", __name__, "METRIC")


@dataclass(frozen=True)
class Scores:
    """One score in [0, 1] per sample, in the order of `samples`; a metric's value is their mean."""

    samples: NDArray[np.object_]
    values: Values


@dataclass(frozen=True)
class Metric:
    """A mean of per-sample scores, so two models can be compared sample by sample. Higher is better."""

    name: str
    title: str
    kinds: tuple[Kind, ...]
    scores: Callable[[Outcomes], Scores]

    def estimate(self, outcomes: Outcomes) -> Estimate:
        """Value and 95 % interval."""
        return mean(self.scores(outcomes).values)


def metric_for(name: str) -> Metric:
    """Return the metric called `name`."""
    metric: Metric = METRICS.get(name)
    return metric


def measure(outcomes: Outcomes) -> dict[str, Estimate]:
    """Every metric that applies to these outcomes."""
    metrics = [metric_for(name) for name in METRICS.names()]
    return {metric.name: metric.estimate(outcomes) for metric in metrics if outcomes.kind in metric.kinds}


def aligned(a: Scores, b: Scores) -> tuple[Values, Values]:
    """Return two score vectors in the same order of samples.

    Raises:
        BadInputError: they are not of the same samples.

    """
    first, second = np.argsort(a.samples), np.argsort(b.samples)
    if len(first) != len(second) or (a.samples[first] != b.samples[second]).any():
        odd = len(set(a.samples.tolist()) ^ set(b.samples.tolist()))
        raise BadInputError(f"{odd} sample ids are in one record only", fix="evaluate both on the same samples")
    return a.values[first], b.values[second]
