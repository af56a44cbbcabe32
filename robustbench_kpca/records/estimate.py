"""Estimates with their uncertainty, and tests that compare two models sample by sample."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
CONFIDENCE = 0.95
Z = 1.959963984540054
"""The 97.5th percentile of the normal distribution: the half width of its 95 % interval, in standard deviations."""
RESAMPLES = 2000
FLIPS = 10_000
BLOCK = 2**17
"""Drawn indices at a time: 1 MiB, which the cache of a core holds."""
KEPT = 2**24
"""Drawn indices, or weights, that are kept for the next metric of as many samples: 32 MiB, in two bytes each."""


@dataclass(frozen=True)
class Estimate:
    """`value` with a two-sided 95 % interval [`low`, `high`] from `n` independent samples, by `method`.

    Examples:
        >>> from robustbench_kpca import Estimate
        >>> print(Estimate(0.93, 0.86, 0.97, n=100, method="wilson"))
        0.9300 [0.8600, 0.9700], n = 100
    """

    value: float
    low: float
    high: float
    n: int
    method: str

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}], n = {self.n}"


def proportion(successes: int, n: int, confidence: float = CONFIDENCE) -> Estimate:
    """Return `successes` of `n` with Wilson's score interval (Wilson 1927): inside [0, 1], also valid at 0 and n.

    With p = successes / n, its centre is (2 n p + z^2) / (2 (n + z^2)), and its half width
    z sqrt(4 n p (1 - p) + z^2) / (2 (n + z^2)), where z is the normal quantile of (1 + confidence) / 2.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} of {n} is no proportion")
    z = Z if confidence == CONFIDENCE else NormalDist().inv_cdf((1 + confidence) / 2)
    p, whole = successes / n, 2 * (n + z**2)
    centre = (2 * n * p + z**2) / whole
    half = z / whole * math.sqrt(4 * n * p * (1 - p) + z**2)
    low, high = 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half
    return Estimate(p, low, high, n, "wilson")


def bootstrap_mean(values: Values, seed: int = 0, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of `values` with the percentile bootstrap interval over samples (Efron 1979), seeded."""
    n = len(values)
    means = np.concatenate([values.take(drawn).mean(axis=1) for drawn in resampled(n, seed, RESAMPLES)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(values.mean()), float(low), float(high), n, "bootstrap")


def resampled(n: int, seed: int, resamples: int) -> Iterable[NDArray[np.integer[Any]]]:
    """Return all resamples of n samples as rows of indices, in blocks of at most `BLOCK` indices (or one row)."""
    return _kept(n, seed, resamples) if n * resamples <= KEPT else _drawn(n, seed, resamples)


@lru_cache(maxsize=2)
def _kept(n: int, seed: int, resamples: int) -> tuple[NDArray[np.integer[Any]], ...]:
    return tuple(drawn.astype(np.min_scalar_type(n)) for drawn in _drawn(n, seed, resamples))


def _drawn(n: int, seed: int, resamples: int) -> Iterator[NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return (rng.integers(0, n, (rows, n)) for rows in blocks(n, resamples))


def blocks(n: int, resamples: int) -> Iterator[int]:
    """Yield how many resamples of n samples are drawn at a time: at most `BLOCK` indices, or one resample."""
    rows = max(BLOCK // n, 1)
    for start in range(0, resamples, rows):
        yield min(rows, resamples - start)


def mean(values: Values) -> Estimate:
    """Mean of per-sample scores in [0, 1]: Wilson where all are 0 or 1, else the bootstrap."""
    if _binary(values):
        return proportion(int(values.sum()), len(values))
    return bootstrap_mean(values)


def mcnemar(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    """Two-sided p-value of McNemar's exact test (McNemar 1947) that two paired proportions differ.

    With n10 samples right under `a` only and n01 under `b` only: binomial(n10 + n01, 1/2).
    """
    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    if only_a + only_b == 0:
        return 1.0
    return float(mcnemar_counts(np.array(only_a), np.array(only_b)))


def mcnemar_counts(only_a: NDArray[np.int64], only_b: NDArray[np.int64]) -> Values:
    """Return McNemar's exact p-values of arrays of counts: min(1, 2 F(min(n10, n01); n10 + n01, 1/2))."""
    from scipy import special  # importing it takes a moment

    return np.asarray(np.minimum(1.0, 2 * special.bdtr(np.minimum(only_a, only_b), only_a + only_b, 0.5)))


def sign_flip(a: Values, b: Values) -> float:
    """Two-sided p-value of the paired sign-flip permutation test (Fisher 1935) on the mean of `a - b`."""
    difference = a - b
    difference = difference[difference != 0]
    if len(difference) == 0:
        return 1.0
    rng, n = np.random.default_rng(0), len(difference)
    observed, extreme = abs(difference.sum()) - 1e-12, 0
    for rows in blocks(n, FLIPS):
        bits = rng.integers(0, 2, (rows, n + -n % 4), dtype=np.int8)[:, :n]  # four are drawn at once, for one flip each
        extreme += int((abs((bits * 2.0 - 1) @ difference) >= observed).sum())
    return float((extreme + 1) / (FLIPS + 1))


def paired_p_value(a: Values, b: Values) -> float:
    """Test whether two per-sample score vectors differ in mean: McNemar where all are 0 or 1, else sign flips."""
    return mcnemar(a == 1, b == 1) if _binary(a) and _binary(b) else sign_flip(a, b)


def _binary(values: Values) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down adjustment (Holm 1979), in the order given."""
    order = np.argsort(p_values)
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return adjusted
