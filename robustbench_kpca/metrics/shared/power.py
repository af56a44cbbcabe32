"""Power: which difference between two recipes, or two models, a test would have found with a given probability."""

import numpy as np

from robustbench_kpca.records.trainings import OverSamples, error_of_difference

ALPHA = 0.05
POWER = 0.8
DRAWS = 4000


def detectable_difference(
    shape: tuple[int, int], spread: float, samples: OverSamples, power: float = POWER, alpha: float = ALPHA
) -> float:
    """Return the difference of two means that the two-sided test at `alpha` finds with probability `power`.

    For recipes with B trainings each the test is `records.trainings.compare`, with its true error sqrt(V). It finds a
    difference above c = t_{1 - alpha / 2, df} times the error that it estimates from the spread of trainings,

        power = E[ Phi( (difference - c) / sqrt(V) ) ]

    where the mean is over `DRAWS` seeded draws of what it estimates: 2 spread^2 times chi-squared over its degrees of
    freedom. For two single models V = samples.variance is known, and the difference at a power of 0.8 is 2.8 standard
    errors. Finding it on the wrong side counts for nothing.

    Args:
        shape: recipes whose spread counts, at least two, and trainings of each; one for single models.
        spread: standard deviation between trainings, S without the seeds; not used for single models.
        samples: what they add to the variance of the difference.
        power: probability of finding it, above `alpha` and below 1.
        alpha: level of the test.
    """
    if not alpha < power < 1:
        raise ValueError(f"power {power} at level {alpha}")
    from scipy import optimize, stats  # importing them takes a second

    recipes, trainings = shape
    if trainings == 1 or spread == 0:
        return float(stats.norm.isf(alpha / 2) + stats.norm.ppf(power)) * float(np.sqrt(samples.variance))
    in_a_seed = 2 * spread**2
    error = float(error_of_difference(in_a_seed, in_a_seed, shape, samples)[0])
    drawn = np.random.default_rng(0).chisquare([trainings - 1, max(recipes - 2, 1) * (trainings - 1)], (DRAWS, 2))
    alone, of_others = in_a_seed * drawn.T / (trainings - 1)
    pooled = (alone + (of_others if recipes > 2 else 0)) / (recipes - 1)
    errors, freedom = error_of_difference(alone, pooled, shape, samples)
    limits = stats.t.isf(alpha / 2, freedom) * errors

    def missing(difference: float) -> float:
        return float(stats.norm.cdf((difference - limits) / error).mean() - power)

    # With two trainings limits reach so far that 100 iterations may not do.
    return float(optimize.brentq(missing, 0.0, limits.max() + 10 * error, maxiter=1000))
