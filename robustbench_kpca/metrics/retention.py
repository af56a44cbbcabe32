"""Retention: accuracy under corruption as a fraction of clean accuracy (FAN; Zhou et al. 2022, arXiv:2204.12451)."""

from functools import partial

from robustbench_kpca.metrics import Statistic, Weighted
from robustbench_kpca.metrics.shared.corruption_errors import mean_error_scores, retention
from robustbench_kpca.metrics.shared.grid import grid_of
from robustbench_kpca.protocols.scenario import Corruption, Scenario
from robustbench_kpca.records.outcomes import Outcomes

ENOUGH = 20  # right clean answers: with fewer, a resample may have none, and the ratio divides by 0


def _weighted(outcomes: Outcomes) -> Weighted:
    grid = grid_of(outcomes)
    assert grid.clean_wrong is not None
    corrupted, clean = 1 - mean_error_scores(grid), ~grid.clean_wrong
    return Weighted(grid.samples, partial(retention, corrupted, clean))


def _applies(outcomes: Outcomes, scenario: Scenario) -> bool:
    right = (outcomes["prediction"] == outcomes["label"])[outcomes["severity"] == 0]
    return isinstance(scenario, Corruption) and scenario.clean and int(right.sum()) >= ENOUGH


METRIC = Statistic(
    name="retention", title="Retention (corrupted / clean)", kinds=("corruption",), weighted=_weighted, applies=_applies
)
