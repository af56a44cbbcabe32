"""Several trainings of one recipe: the mean of a number over them, its interval, and a test between two recipes.

**One recipe.** The number x_{s,i} of training s on sample i varies with both: x_{s,i} = m + a_s + b_i + e_{s,i}. With
k trainings, s the standard deviation of the k numbers, and h the mean standard error over samples of a single training,

    V = s^2 / k + h^2,    half width = t_{0.975, df} sqrt(V),    df = V^2 / ( (s^2 / k)^2 / (k - 1) )

The first part of V shrinks with more trainings; the second is what the choice of samples adds, which more trainings do
not remove. The degrees of freedom are Satterthwaite's (1946): k - 1 where trainings differ most, many where samples
do. Both parts contain e_{s,i}, so the interval is somewhat too wide.

**Two recipes** are compared over the B seeds that they share: seeds are blocks (Fisher, 1935). The number of recipe a
with seed b is y_ab = m + recipe_a + seed_b + e_ab. Of A recipes with the same seeds, and of the two alone,

    S^2 = sum_ab (y_ab - y_a. - y_.b + y_..)^2 / ((A - 1)(B - 1)),    s_D^2 = the variance of D_b = y_1b - y_2b

A difference in one seed has the variance 2 S^2, or s_D^2 where that is larger, with (A - 1)(B - 1) degrees of freedom;
with B - 1, those of the pair alone, where an F-test at 10 % says that it spreads more than the other recipes. Samples
are the second source: with MS_seed = n times this variance, and MS_img and MS_res of the differences D_bi of samples i,

    V = max(MS_seed + MS_img - MS_res, MS_seed, MS_img) / (B n)
    df = (B n V)^2 / ( MS_seed^2 / df_seed + MS_img^2 / (n - 1) + MS_res^2 / ((B - 1)(n - 1)) )    (Satterthwaite)

so new seeds and new samples are meant. No source has a variance below zero, hence the maximum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.records.estimate import CONFIDENCE, Estimate, Values, Z

DISAGREE = 0.1
"""Level of the F-test that a pair of recipes spreads more than the others."""


def over_trainings(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of one number over k >= 2 trainings, with its 95 % interval; `n` is the number of samples.

    h is taken from the single intervals, below and above by itself, as they need not be symmetric: mean half width over
    1.96, an end on the wrong side of its value counting as none. The interval may leave the range of the number, such
    as [0, 1].
    """
    k = len(estimates)
    if k < 2:
        raise ValueError("one training has no spread")
    values = np.array([estimate.value for estimate in estimates])
    mean, trainings = float(values.mean()), float(values.var(ddof=1)) / k
    below = float(np.mean([max(estimate.value - estimate.low, 0.0) for estimate in estimates])) / Z
    above = float(np.mean([max(estimate.high - estimate.value, 0.0) for estimate in estimates])) / Z
    low, high = mean - _half_width(trainings, below, k), mean + _half_width(trainings, above, k)
    return Estimate(mean, low, high, min(estimate.n for estimate in estimates), f"{k} trainings")


def _half_width(trainings: float, samples_error: float, k: int) -> float:
    """Return t sqrt(V) of k numbers, the variance of whose mean is `trainings`."""
    from scipy import special  # importing it takes a moment

    variance = trainings + samples_error**2
    freedom = (k - 1) * (variance / trainings) ** 2 if trainings > 0 else np.inf
    return float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(variance))


@dataclass(frozen=True)
class OverSamples:
    """What the choice of n samples adds to the variance of the difference between two means of B trainings each.

    Attributes:
        variance: variance of the difference, as samples alone show it: MS_img / (B n); infinite of one sample.
        shared: its part that trainings show, too: MS_res / (B n). 0 where it is not known, and so counts twice.
        n: number of samples; infinite where `variance` is known.
    """

    variance: float
    shared: float = 0.0
    n: float = np.inf

    @classmethod
    def of(cls, differences: Values) -> "OverSamples":
        """Return it from the differences of two recipes' scores, shape (B, n), a row for each seed."""
        trainings, n = differences.shape
        if n == 1:
            return cls(np.inf)
        samples = differences.mean(0)
        rest = differences - differences.mean(1, keepdims=True) - samples + differences.mean()
        shared = float((rest**2).sum()) / ((trainings - 1) * (n - 1)) if trainings > 1 else 0.0
        return cls(float(samples.var(ddof=1)) / n, shared / (trainings * n), n)


@dataclass(frozen=True)
class Comparison:
    """Two recipes over the seeds that they share: means, standard error of their difference, degrees of freedom.

    `recipes`: how many lend their spread; 2 where the pair spreads more than the others.
    """

    first: float
    second: float
    error: float
    freedom: float
    trainings: int
    recipes: int

    @property
    def difference(self) -> float:
        """Return the first mean minus the second."""
        return self.first - self.second

    @property
    def p_value(self) -> float:
        """Return the two-sided p-value that both recipes have the same mean."""
        if self.difference == 0 or self.error == 0:
            return float(self.difference == 0)
        from scipy import special  # importing it takes a moment

        return float(2 * special.stdtr(self.freedom, -abs(self.difference) / self.error))

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the ends of the interval of the difference; it excludes 0 where `p_value` is below 1 - confidence."""
        from scipy import special  # importing it takes a moment

        half = float(special.stdtrit(self.freedom, (1 + confidence) / 2)) * self.error
        return self.difference - half, self.difference + half


def compare(numbers: Sequence[Sequence[float] | Values] | Values, samples: OverSamples) -> Comparison:
    """Compare the first two of several recipes that were trained with the same seeds.

    Args:
        numbers: shape (A, B), a row for each recipe and a column for each seed; at least two of both.
        samples: what they add to the variance of the first mean minus the second.
    """
    table = np.array(numbers, np.float64)
    if table.ndim != 2 or min(table.shape) < 2:
        raise ValueError("one training has no spread")
    alone, pooled = 2 * residual_variance(table[:2]), 2 * residual_variance(table)
    if np.isfinite(samples.variance):
        error, freedom = map(float, error_of_difference(alone, pooled, table.shape, samples))
    else:
        error, freedom = np.inf, 1.0
    recipes = 2 if _disagree(alone, pooled, table.shape) else len(table)
    first, second = map(float, table[:2].mean(1))
    return Comparison(first, second, error, freedom, trainings=table.shape[1], recipes=recipes)


def residual_variance(numbers: Values) -> float:
    """Return S^2 of numbers of A recipes and B seeds, shape (A, B)."""
    rest = numbers - numbers.mean(1, keepdims=True) - numbers.mean(0) + numbers.mean()
    return float((rest**2).sum() / ((len(numbers) - 1) * (numbers.shape[1] - 1)))


def error_of_difference(
    alone: float | Values, pooled: float | Values, shape: tuple[int, ...], samples: OverSamples
) -> tuple[Values, Values]:
    """Return the standard error of a difference of two means, and its degrees of freedom.

    Args:
        alone: variance of the difference in one seed, from the pair alone: s_D^2.
        pooled: the same from all recipes: 2 S^2.
        shape: A recipes and B seeds.
        samples: what they add.
    """
    recipes, trainings = shape
    seeds = np.maximum(alone, pooled) / trainings
    freedom = np.where(_disagree(alone, pooled, shape), 1, recipes - 1) * (trainings - 1)
    variance = np.maximum(seeds + samples.variance - samples.shared, np.maximum(seeds, samples.variance))
    loss = seeds**2 / freedom + (samples.variance**2 + samples.shared**2 / (trainings - 1)) / (samples.n - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(variance)), np.asarray(np.where(loss > 0, variance**2 / loss, np.inf))


def _disagree(alone: float | Values, pooled: float | Values, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Whether the pair spreads more than the other recipes do."""
    from scipy import special  # importing it takes a moment

    recipes, trainings = shape
    if recipes == 2:
        return np.zeros_like(pooled, np.bool_)
    rest = (np.multiply(pooled, recipes - 1) - alone) / (recipes - 2)
    limit = special.fdtri(trainings - 1, (recipes - 2) * (trainings - 1), 1 - DISAGREE)
    return np.asarray(alone > limit * rest)
