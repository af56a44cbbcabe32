"""Several trainings of one recipe: the mean of a number over them, its interval, and a test between two recipes.

The number x_{s,i} of training s on sample i varies with both: x_{s,i} = m + a_s + b_i + e_{s,i}. With k trainings, s
the standard deviation of the k numbers, and h the mean standard error over samples of a single training,

    V = s^2 / k + h^2,    half width = t_{0.975, df} sqrt(V),    df = V^2 / ( (s^2 / k)^2 / (k - 1) )

The first part of V shrinks with more trainings; the second is what the choice of samples adds, which more trainings do
not remove. The degrees of freedom are Satterthwaite's (1946): k - 1 where trainings differ most, many where samples
do. Both parts contain e_{s,i}, so the interval is somewhat too wide. The test is built in the same way.
"""

from collections.abc import Sequence

import numpy as np

from robustbench_kpca.records.estimate import CONFIDENCE, Estimate, Z


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
    from scipy import stats  # importing it takes a second

    variance = trainings + samples_error**2
    freedom = (k - 1) * (variance / trainings) ** 2 if trainings > 0 else np.inf
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance))


def recipes_differ(first: Sequence[float], second: Sequence[float], samples_error: float) -> float:
    """Return the two-sided p-value that two recipes have the same mean.

    Welch's t-test (Welch, 1947) with one more source of variance: the samples, which both recipes share.

        t  = (mean_1 - mean_2) / sqrt(V),    V = s_1^2 / k_1 + s_2^2 / k_2 + samples_error^2
        df = V^2 / ( (s_1^2 / k_1)^2 / (k_1 - 1) + (s_2^2 / k_2)^2 / (k_2 - 1) )     (Satterthwaite, 1946)

    Args:
        first: one number per training of the first recipe, at least two.
        second: the same of the second recipe.
        samples_error: standard error over samples of the difference of the means.

    """
    difference, error, freedom = _welch(first, second, samples_error)
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    from scipy import stats  # importing it takes a second

    return float(2 * stats.t.sf(abs(difference) / error, freedom))


def difference_of_recipes(
    first: Sequence[float], second: Sequence[float], samples_error: float, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return the mean of the first recipe minus that of the second, and the ends of its interval.

    The interval is the one that belongs to `recipes_differ`: (mean_1 - mean_2) -+ t_{(1 + confidence) / 2, df} sqrt(V).
    It excludes 0 where that p-value is below 1 - confidence. Other arguments as there.
    """
    from scipy import stats  # importing it takes a second

    difference, error, freedom = _welch(first, second, samples_error)
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * error
    return difference, difference - half, difference + half


def _welch(first: Sequence[float], second: Sequence[float], samples_error: float) -> tuple[float, float, float]:
    """Return the difference of the means, its standard error sqrt(V), and the degrees of freedom."""
    if min(len(first), len(second)) < 2:
        raise ValueError("one training has no spread")
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    variance = sum(parts) + samples_error**2
    loss = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
    freedom = variance**2 / loss if loss > 0 else np.inf
    return float(np.mean(first) - np.mean(second)), float(np.sqrt(variance)), float(freedom)
