"""Mean corruption error, unnormalised: the mean top-1 error over corruptions and severities. It is not mCE.

It has been published under that name (the official evaluation script prints it so): see `mce`.
"""

from robustbench_kpca.metrics import Mean, Scores
from robustbench_kpca.metrics.shared.corruption_errors import mean_error_scores
from robustbench_kpca.metrics.shared.grid import grid_of
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    grid = grid_of(outcomes)
    return Scores(grid.samples, mean_error_scores(grid))


METRIC = Mean(
    name="mean_corruption_error", title="Mean error under corruption (not mCE)", kinds=("corruption",),
    lower_is_better=True, scores=_scores,
)  # fmt: skip
