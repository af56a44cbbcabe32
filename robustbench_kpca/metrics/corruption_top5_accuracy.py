"""Corruption top-5 accuracy: as corruption accuracy, of images whose label is among the five largest logits."""

from robustbench_kpca.metrics import Mean, Scores
from robustbench_kpca.metrics.shared.corruption_errors import mean_error_scores
from robustbench_kpca.metrics.shared.grid import grid_of
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    grid = grid_of(outcomes, top=5)
    return Scores(grid.samples, 1 - mean_error_scores(grid))


METRIC = Mean(
    name="corruption_top5_accuracy", title="Corruption accuracy (top 5)", kinds=("corruption",), scores=_scores
)
