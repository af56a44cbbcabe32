"""Relative mean corruption error: what corruption costs over the clean error, divided by what it costs a reference.

Hendrycks & Dietterich (2019, arXiv:1903.12261), section 4; equations in `_corruption_errors`. A model that is bad on
clean images too can have a small one: read it beside the clean accuracy.
"""

from robustbench_kpca.metrics import Scores
from robustbench_kpca.metrics.shared.corruption_errors import ErrorTable, relative_mce_scores
from robustbench_kpca.metrics.shared.grid import grid_of
from robustbench_kpca.metrics.shared.relative import RelativeError, alexnet_knows
from robustbench_kpca.protocols.scenario import Corruption, Scenario
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes, reference: ErrorTable) -> Scores:
    grid = grid_of(outcomes)
    return Scores(grid.samples, relative_mce_scores(grid, reference))


def _applies(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    return isinstance(scenario, Corruption) and alexnet_knows(scenario) and scenario.clean


METRIC = RelativeError.by_alexnet(name="relative_mce", title="Relative mCE", of=_scores, applies=_applies)
