"""Corruption accuracy: the mean over all cells (corruption x severity) of the share of images classified correctly.

100 % minus this is the unnormalised mean error over corruptions, which is not mCE: that divides by a reference's errors
(see `mce`). Each sample's score is its share of cells answered correctly. The four extra corruptions do not count.
"""

from robustbench_kpca.metrics import Mean, Scores
from robustbench_kpca.metrics.shared.corruption_errors import mean_error_scores
from robustbench_kpca.metrics.shared.grid import grid_of
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    grid = grid_of(outcomes)
    return Scores(grid.samples, 1 - mean_error_scores(grid))


METRIC = Mean(name="corruption_accuracy", title="Corruption accuracy", kinds=("corruption",), scores=_scores)
