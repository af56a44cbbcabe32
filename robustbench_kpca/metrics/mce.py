"""Mean corruption error: errors by corruption divided by a reference's, AlexNet's or another model's; then the mean.

Hendrycks & Dietterich (2019, arXiv:1903.12261), section 4; equations in `_corruption_errors`. AlexNet's errors are of
ImageNet-C as published, so protocols say whether they apply; on a board another model can be the reference.
"""

from robustbench_kpca.metrics import Scores
from robustbench_kpca.metrics.shared.corruption_errors import ErrorTable, mce_scores
from robustbench_kpca.metrics.shared.grid import grid_of
from robustbench_kpca.metrics.shared.relative import RelativeError, alexnet_knows
from robustbench_kpca.protocols.scenario import Corruption, Scenario
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes, reference: ErrorTable) -> Scores:
    grid = grid_of(outcomes)
    return Scores(grid.samples, mce_scores(grid, reference))


def _applies(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    return isinstance(scenario, Corruption) and alexnet_knows(scenario)


METRIC = RelativeError.by_alexnet(name="mce", title="mCE", of=_scores, applies=_applies)
