"""What a metric is: a value with its uncertainty, computed from outcomes, and a comparison of two models.

Whatever compares models refuses scores and outcomes that are not of the same samples, with a BadInputError.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics.shared.bootstrap import Many, Resampled, Weights, bootstraps, paired_difference
from robustbench_kpca.metrics.shared.unit import PERCENT, Unit
from robustbench_kpca.protocols.scenario import Corruption, Scenario
from robustbench_kpca.records.estimate import Estimate, Values, Z, mean, paired_p_value
from robustbench_kpca.records.outcomes import Outcomes


@dataclass(frozen=True)
class Scores:
    """One score per sample, in the order of `samples`; a metric's value is their mean."""

    samples: NDArray[np.object_]
    values: Values


@dataclass(frozen=True)
class Paired:
    """Two values of one metric on the same samples. `lost` and `gained` count samples that score worse and better.

    Both are None where a sample has no score of its own.
    """

    first: float
    second: float
    p_value: float
    lost: int | None
    gained: int | None


def _always(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    return True


def has_clean(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    """Whether there are samples as they are: under every protocol but a grid of corruptions without a clean cell."""
    return not isinstance(scenario, Corruption) or scenario.clean


def _nothing(scenario: Scenario) -> str:  # noqa: ARG001
    return ""


@dataclass(frozen=True, kw_only=True)
class Metric(ABC):
    """A number with its uncertainty.

    Attributes:
        name: in records, boards and rules; title: on pages; what: one sentence, for `rbk list metrics`.
        task: the task whose outcomes it is computed from, such as `classification`.
        kinds: the kinds of protocol that it can be computed under, such as `clean` and `attack`.
        unit: how its value is written.
        lower_is_better: whether a smaller value is the better one.
        applies: whether it can be computed from these outcomes of its task and kinds.
        objection: why it has no meaning under a protocol of its kinds, and what to do; "" where it has one.
        chance: what guessing gets by the labels alone, where that is not zero; see `tasks.pages.Pages.chance`.
        unattacked: of a metric of attacks, the name of the metric that is the same without the attack.
        needs_reference: whether it has no value until it is `relative_to` another model.
        more_than: so many classes or fewer make it 1 for every model.
        share: whether its values cannot leave [0, 1]; those of a ratio of two values can.
    """

    name: str
    title: str
    what: str = ""
    task: str
    kinds: tuple[str, ...]
    unit: Unit
    lower_is_better: bool = False
    applies: Callable[[Outcomes, Scenario], bool] = field(default=_always)
    objection: Callable[[Scenario], str] = field(default=_nothing)
    chance: Callable[[Outcomes], float] | None = None
    unattacked: str | None = None
    needs_reference: bool = False
    more_than: int = 0
    share: bool = False

    @abstractmethod
    def estimate(self, outcomes: Outcomes) -> Estimate:
        """Value and 95 % interval."""

    @abstractmethod
    def paired(self, first: Outcomes, second: Outcomes) -> Paired:
        """Compare two models on the same samples."""

    def better(self, first: float, second: float) -> bool:
        """Whether the first value is strictly better."""
        return first < second if self.lower_is_better else first > second

    def relative_to(self, reference: Outcomes) -> "Metric":  # noqa: ARG002
        """Return this metric with another model's errors to divide by, for those that divide by errors."""
        raise BadInputError(f"metric '{self.name}' divides by nothing", fix="leave `reference` out")


@dataclass(frozen=True, kw_only=True)
class Mean(Metric):
    """A mean of per-sample scores."""

    share: bool = True
    scores: Callable[[Outcomes], Scores]

    def estimate(self, outcomes: Outcomes) -> Estimate:
        """Value and 95 % interval."""
        return mean(self.scores(outcomes).values)

    def paired(self, first: Outcomes, second: Outcomes) -> Paired:
        """Compare two models: McNemar's exact test, or sign flips where scores are graded."""
        return self.paired_scores(self.scores(first), self.scores(second))

    def paired_scores(self, first: Scores, second: Scores) -> Paired:
        """Compare two vectors of scores."""
        a, b = aligned(first, second)
        worse, better = int((b < a).sum()), int((b > a).sum())
        lost, gained = (better, worse) if self.lower_is_better else (worse, better)
        return Paired(float(a.mean()), float(b.mean()), paired_p_value(a, b), lost, gained=gained)


@dataclass(frozen=True)
class Weighted:
    """A number of some samples as a function of how often each counts (None: once).

    `strata` numbers groups that are resampled each by itself, such as images of known and of unknown classes. `many` is
    the same of many rows of weights at once, shape (resamples, n), where that is faster.
    """

    samples: NDArray[np.object_]
    value: Callable[[NDArray[np.int64] | None], float]
    strata: NDArray[np.int64] | None = None
    many: Callable[[NDArray[np.int64]], Values] | None = None


@dataclass(frozen=True, kw_only=True)
class Statistic(Metric):
    """A number that is not a mean of scores; its uncertainty comes from the bootstrap over samples.

    `centred`: its intervals are those of `bootstraps` with a centre, inside [0, 1] for a share.
    """

    centred: bool = False
    weighted: Callable[[Outcomes], Weighted]

    def estimate(self, outcomes: Outcomes) -> Estimate:
        """Value and 95 % interval."""
        return estimates([self], outcomes)[self.name]

    def interval_around(self, value: float, low: float, high: float, n: int) -> Estimate:
        """Return the estimate of `n` samples whose interval is that of `bootstraps`."""
        if not self.centred:
            return Estimate(value, low, high, n, "bootstrap")
        low, high = (min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)) if self.share else (low, high)
        return Estimate(value, low, high, n, "centred bootstrap")

    def paired(self, first: Outcomes, second: Outcomes) -> Paired:
        """Compare two models over the same resampled samples."""
        a, b = self.weighted(first.sorted()), self.weighted(second.sorted())
        _require_same(a.samples, b.samples)
        many = None if a.many is None or b.many is None else (a.many, b.many)
        difference = paired_difference(a.value, b.value, len(a.samples), strata=a.strata, many=many)
        return Paired(a.value(None), b.value(None), difference.p_value, None, gained=None)

    def difference_error(self, first: Sequence[Outcomes], second: Sequence[Outcomes]) -> float:
        """Return the standard error over samples of the difference between the mean values of two groups of models.

        It is the width of the bootstrap's 95 % interval over 2 x 1.96; infinite of one sample.
        """
        groups = [[self.weighted(outcomes.sorted()) for outcomes in group] for group in (first, second)]
        everything = groups[0] + groups[1]
        for other in everything[1:]:
            _require_same(everything[0].samples, other.samples)

        def value(group: list[Weighted]) -> Callable[[Weights], float]:
            return lambda weights: float(np.mean([model.value(weights) for model in group]))

        def values(group: list[Weighted]) -> Many:
            return lambda weights: np.mean([model.many(weights) for model in group if model.many is not None], axis=0)

        many = None if any(model.many is None for model in everything) else (values(groups[0]), values(groups[1]))
        difference = paired_difference(
            value(groups[0]), value(groups[1]), len(everything[0].samples), strata=everything[0].strata, many=many
        )
        return (difference.high - difference.low) / (2 * Z) if len(everything[0].samples) > 1 else float("inf")


def estimates(metrics: Sequence[Metric], outcomes: Outcomes) -> dict[str, Estimate]:
    """Return the estimates of several metrics of one table, by name; those from the bootstrap share its resamples."""
    statistics = [
        metric for metric in metrics if isinstance(metric, Statistic) and type(metric).estimate is Statistic.estimate
    ]
    groups: dict[tuple[int, bytes | None], list[tuple[Statistic, Weighted, float]]] = {}
    for statistic in statistics:
        weighted = statistic.weighted(outcomes)
        key = len(weighted.samples), None if weighted.strata is None else weighted.strata.tobytes()
        groups.setdefault(key, []).append((statistic, weighted, weighted.value(None)))
    bootstrapped: dict[str, Estimate] = {}
    for (n, _), group in groups.items():
        functions = [Resampled(each.value, each.many, value if of.centred else None) for of, each, value in group]
        intervals = bootstraps(functions, n, strata=group[0][1].strata)
        for (statistic, _, value), (low, high) in zip(group, intervals, strict=True):
            bootstrapped[statistic.name] = statistic.interval_around(value, low, high, n)
    return {metric.name: bootstrapped.get(metric.name) or metric.estimate(outcomes) for metric in metrics}


def aligned(a: Scores, b: Scores) -> tuple[Values, Values]:
    """Return two score vectors in the same order of samples."""
    first, second = (np.argsort(scores.samples, kind="stable") for scores in (a, b))  # sooner of what is sorted
    _require_same(a.samples[first], b.samples[second])
    return a.values[first], b.values[second]


def _require_same(first: NDArray[np.object_], second: NDArray[np.object_]) -> None:
    if len(first) != len(second) or (first != second).any():
        unshared = len(set(first.tolist()) ^ set(second.tolist()))
        raise BadInputError(f"{unshared} sample ids are in one record only", fix="evaluate both on the same samples")


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
        kinds: kinds of the protocols under which it is computed: `clean`, `attack`, `corruption`, `shift`, `ood`.
        task: task of the outcomes: `classification`, `segmentation` or `language`.
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
