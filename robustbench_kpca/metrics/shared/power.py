"""Power: which difference between two recipes, or two models, a test would have found with a given probability."""

import numpy as np

ALPHA = 0.05
POWER = 0.8
DRAWS = 4000


def detectable_difference(
    trainings: int, spread: float, samples_error: float, power: float = POWER, alpha: float = ALPHA
) -> float:
    """Return the difference of two means that the two-sided test at `alpha` finds with probability `power`.

    For two recipes with k trainings each the test is `records.trainings.recipes_differ`. It estimates the variance of
    the difference, V = 2 spread^2 / k + samples_error^2, by v = (s_1^2 + s_2^2) / k + samples_error^2, and finds a
    difference above c = t_{1 - alpha / 2, df} sqrt(v). With s_j^2 (k - 1) / spread^2 from the chi-squared distribution,

        power = E[ Phi( (difference - c) / sqrt(V) ) ]

    where the mean is over `DRAWS` seeded draws of s_1 and s_2. For two single models V = samples_error^2 is known, and
    the difference at a power of 0.8 is 2.8 standard errors. Finding it on the wrong side counts for nothing.

    Args:
        trainings: of each recipe; 1 for two single models.
        spread: standard deviation between trainings of one recipe; not used for single models.
        samples_error: standard error over samples of the difference.
        power: probability of finding it, above `alpha` and below 1.
        alpha: level of the test.

    """
    if not alpha < power < 1:
        raise ValueError(f"power {power} at level {alpha}")
    from scipy import optimize, stats  # importing them takes a second

    of_trainings = 0.0 if trainings == 1 else 2 * spread**2 / trainings
    error = float(np.sqrt(of_trainings + samples_error**2))
    if error == 0:
        return 0.0
    if of_trainings == 0:
        return float(stats.norm.isf(alpha / 2) + stats.norm.ppf(power)) * error
    freedom = trainings - 1
    parts = spread**2 / trainings * np.random.default_rng(0).chisquare(freedom, (DRAWS, 2)) / freedom
    estimated = parts.sum(1) + samples_error**2
    limits = stats.t.isf(alpha / 2, estimated**2 * freedom / (parts**2).sum(1)) * np.sqrt(estimated)

    def missing(difference: float) -> float:
        return float(stats.norm.cdf((difference - limits) / error).mean() - power)

    return float(optimize.brentq(missing, 0.0, limits.max() + 10 * error))
