"""Metrics made of a function."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from robustbench_kpca.metrics.shared.metric import Mean, Scores
from robustbench_kpca.metrics.shared.unit import PERCENT, Unit
from robustbench_kpca.records.outcomes import Outcomes


def metric(
    *,
    unit: Unit = PERCENT,
    kinds: Sequence[str] = ("attack",),
    task: str = "classification",
    lower_is_better: bool = False,
) -> Callable[[Callable[[Outcomes], ArrayLike]], Mean]:
    """Make a metric of a function of outcomes that returns one value a row; the metric is their mean.

    Columns of outcomes are arrays: `outcomes["prediction"]`. Its interval and its test follow from the values.

    Args:
        unit: how its value is written: `PERCENT` for values in [0, 1], or `PLAIN`.
        kinds: of the protocols under which it is computed: `clean`, `attack`, `corruption`, `shift`, `ood`.
        task: of the outcomes: `classification`, `segmentation` or `language`.
        lower_is_better: whether a smaller value is the better one.

    Examples:
        >>> from robustbench_kpca import metric
        >>> @metric(kinds=["clean"])
        ... def sevens(outcomes):
        ...     "Share of samples that are called a seven."
        ...     return outcomes["prediction"] == 7
        >>> sevens.title, sevens.what
        ('sevens', 'Share of samples that are called a seven.')
    """

    def make(function: Callable[[Outcomes], ArrayLike]) -> Mean:
        def scores(outcomes: Outcomes) -> Scores:
            return Scores(outcomes["sample"], np.asarray(function(outcomes), np.float64))

        title = function.__name__.replace("_", " ")
        return Mean(
            name=function.__name__, title=title, what=(function.__doc__ or title).partition("\n")[0], task=task,
            kinds=tuple(kinds), unit=unit, lower_is_better=lower_is_better, share=unit is PERCENT, scores=scores,
        )  # fmt: skip

    return make
