"""Power: which difference between two recipes, or two models, a test would have found with a given probability."""

from dataclasses import dataclass

import numpy as np

from robustbench_kpca.records.trainings import OverSamples, error_of_difference

ALPHA = 0.05
POWER = 0.8
DRAWS = 4000


@dataclass(frozen=True)
class Detectable:
    """A difference in a column that one two-sided test finds with 80 %.

    Attributes:
        trainings: seeds that rows share; 1 where single models are compared.
        difference: not scaled, so of accuracies in [0, 1].
    """

    trainings: int
    samples: int
    difference: float


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
    from scipy import optimize, special  # importing them takes a moment

    recipes, trainings = shape
    if trainings == 1 or spread == 0:
        return float(special.ndtri(power) - special.ndtri(alpha / 2)) * float(np.sqrt(samples.variance))
    in_a_seed = 2 * spread**2
    error = float(error_of_difference(in_a_seed, in_a_seed, shape, samples)[0])
    drawn = np.random.default_rng(0).chisquare([trainings - 1, max(recipes - 2, 1) * (trainings - 1)], (DRAWS, 2))
    alone, of_others = in_a_seed * drawn.T / (trainings - 1)
    pooled = (alone + (of_others if recipes > 2 else 0)) / (recipes - 1)
    errors, freedom = error_of_difference(alone, pooled, shape, samples)
    limits = -special.stdtrit(freedom, alpha / 2) * errors

    def missing(difference: float) -> float:
        return float(special.ndtr((difference - limits) / error).mean() - power)

    return float(optimize.brentq(missing, 0.0, limits.max() + 10 * error, maxiter=1000))  # two trainings reach far
