"""The bootstrap: intervals of statistics that are not means, and paired comparisons of two models.

Source: Efron (1979), "Bootstrap methods: another look at the jackknife"; Efron & Tibshirani (1993), chapters 13 and 16.
A resample of n images is the vector of how often each was drawn, multinomial(n; 1/n, ..., 1/n), so a statistic sorts
its images once and is then evaluated under weights.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.estimate import CONFIDENCE, KEPT, RESAMPLES, Values, blocks, resampled

Weights = NDArray[np.int64]
Statistic = Callable[[Weights], float]
"""The value where each image counts as often as its weight says."""
Many = Callable[[Weights], Values]
"""The values under each row of weights (resamples, n): for statistics that are sooner had all at once."""
Strata = NDArray[Any] | None


class Resampled(NamedTuple):
    """A statistic of resamples, one by one and, where that is faster, many at once.

    `centre`: its value on the images themselves, for a statistic that is larger on resamples than on images, such as a
    mean of absolute values. Its interval is centred there.
    """

    value: Statistic
    many: Many | None = None
    centre: float | None = None


@dataclass(frozen=True)
class Difference:
    """`value` of the first minus the second, its 95 % interval [`low`, `high`], and the two-sided p-value of 0."""

    value: float
    low: float
    high: float
    p_value: float


def bootstraps(
    statistics: Sequence[Resampled],
    n: int,
    seed: int = 0,
    resamples: int = RESAMPLES,
    strata: Strata = None,
) -> list[tuple[float, float]]:
    """Return the 95 % percentile interval of each of several statistics of the same n images, on the same resamples.

    With a centre t, where q are quantiles and m is the mean over resamples, it is instead
    [t + m - q(0.975), t + m - q(0.025)]: the basic interval (Davison & Hinkley 1997, section 5.2.1) for the mean of the
    statistic over sets of n images, not for what it tends to.

    Args:
        statistics: each takes integer weights, shape (n,).
        n: number of images.
        seed: seed of the resamples; for a mean, the resamples of `estimate.bootstrap_mean` with the same seed.
        resamples: their number.
        strata: group of each image, shape (n,). Each group is resampled by itself and keeps its size: for statistics of
            two samples, such as images of known and of unknown classes.

    Raises:
        BadInputError: no image, or the statistic is not finite on a resample.
    """
    pairs = zip(statistics, _evaluate(statistics, n, seed, resamples, strata), strict=True)
    return [_interval(values, statistic.centre) for statistic, values in pairs]


def paired_difference(
    first: Statistic,
    second: Statistic,
    n: int,
    seed: int = 0,
    resamples: int = RESAMPLES,
    strata: Strata = None,
    many: tuple[Many, Many] | None = None,
) -> Difference:
    """Compare two statistics of the same n images, both evaluated on the same resamples.

    The p-value inverts the percentile interval, where d* is the difference on a resample and B their number:

        p = min(1, 2 min(#{d* <= 0} + 1, #{d* >= 0} + 1) / (B + 1))

    which is never below 2 / (B + 1). Nor is it below 2^(1 - n), the
    smallest p-value of sign flips of n images: the resamples of one image are all alike, and prove nothing. Other
    arguments and errors as `bootstraps`.
    """
    both = None if many is None else lambda weights: many[0](weights) - many[1](weights)
    statistic = Resampled(lambda weights: first(weights) - second(weights), both)
    (values,) = _evaluate([statistic], n, seed, resamples, strata)
    once = np.ones(n, dtype=np.int64)
    fewer = min((values <= 0).sum(), (values >= 0).sum())
    p_value = min(1.0, max(2 * (int(fewer) + 1) / (resamples + 1), 2.0 ** (1 - n)))
    return Difference(float(first(once)) - float(second(once)), *_interval(values), p_value)


def _evaluate(statistics: Sequence[Resampled], n: int, seed: int, resamples: int, strata: Strata) -> list[Values]:
    if n < 1 or resamples < 1:
        raise BadInputError(f"{resamples} resamples of {n} images", expected="at least one of each")
    by_statistic: list[list[Values]] = [[] for _ in statistics]
    for rows in _resamples(n, seed, resamples, strata):
        for parts, (value, many, _) in zip(by_statistic, statistics, strict=True):
            values = [value(weights) for weights in rows] if many is None else many(rows)
            parts.append(np.asarray(values, dtype=np.float64))
    whole = [np.concatenate(parts) for parts in by_statistic]
    for values in whole:
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            raise BadInputError(f"the statistic is not finite on {bad} of {resamples} resamples", fix="use more images")
    return whole


def _resamples(n: int, seed: int, resamples: int, strata: Strata) -> Iterable[Weights]:
    """Give blocks of rows: how often each image counts in each resample. Few small ones are kept for the next call."""
    if n * resamples <= KEPT:
        kept = _few(n, seed, resamples, None if strata is None else tuple(strata.tolist()))
        return (weights.astype(np.int64) for weights in kept)
    return _drawn(n, seed, resamples, strata)


@lru_cache(maxsize=3)  # clean images, corrupted ones, and those of two kinds
def _few(n: int, seed: int, resamples: int, groups: tuple[Any, ...] | None) -> tuple[NDArray[Any], ...]:
    drawn = _drawn(n, seed, resamples, None if groups is None else np.array(groups))
    return tuple(weights.astype(np.min_scalar_type(int(weights.max()))) for weights in drawn)


def _drawn(n: int, seed: int, resamples: int, strata: Strata) -> Iterator[Weights]:
    if strata is not None and len(strata) != n:
        raise BadInputError(f"groups of {len(strata)} images", expected=f"one for each of {n} images")
    if strata is None:
        for drawn in resampled(n, seed, resamples):
            places = drawn + n * np.arange(len(drawn))[:, None]
            yield np.bincount(places.ravel(), minlength=drawn.size).reshape(drawn.shape)
        return
    groups = [np.flatnonzero(strata == group) for group in np.unique(strata)]
    rng = np.random.default_rng(seed)
    for size in blocks(n, resamples):
        weights = np.zeros((size, n), dtype=np.int64)
        for row in weights:
            for members in groups:
                row[members] = np.bincount(rng.integers(0, len(members), len(members)), minlength=len(members))
        yield weights


def _interval(values: Values, centre: float | None = None) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = map(float, np.quantile(values, [tail, 1 - tail]))
    if centre is None:
        return low, high
    middle = centre + float(values.mean())
    return middle - high, middle - low
