"""From outcomes to the grid of errors that corruption metrics are computed from."""

from robustbench_kpca.metrics.shared.corruption_errors import Grid
from robustbench_kpca.records.outcomes import Outcomes


def grid_of(outcomes: Outcomes, top: int = 1) -> Grid:
    """Return which images were wrong in which cell: their label not among the `top` largest logits."""
    right = outcomes["rank"] < top
    return Grid.from_rows(outcomes["sample"], outcomes["corruption"], outcomes["severity"], right)
