"""What a board has of a training, made without a network: for tests of rows and of their differences."""

from types import SimpleNamespace

import numpy as np
from stand_ins import posing_as

from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record

N = 60


def training(metric, seed, right):
    """What a board has of one training: its outcomes, and the metric in its record."""
    rng = np.random.default_rng(seed)
    columns = {"sample": np.array([f"s{i}" for i in range(N)], object), "label": np.zeros(N, np.int64)}
    columns |= {"prediction": (rng.random(N) > right).astype(np.int64), "confidence": rng.random(N)}
    outcomes = Outcomes("classification", "clean", columns)
    file = SimpleNamespace(sha256=outcomes.digest())
    metrics = {metric.name: metric.estimate(outcomes)}
    return [posing_as(Record, outcomes=outcomes, metrics=metrics, outcomes_file=file)]
