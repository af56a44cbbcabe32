"""Calibration: how far confidence is from accuracy. ECE, and the RMS calibration error with and without its last bin.

Confidence is the largest softmax probability, so the two errors compare "how sure" with "how often right" in bins of
images of like confidence. Chance in a bin adds to them, never subtracts, so both are larger than the true error: the
ECE on few images, the RMS error with its bins of 100 images on any number. Compare them at equal n only. A resample has
more chance in it than the images have, so intervals are centred at the value. They are for the mean of the number over
sets of n images, and say nothing of the true error.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Statistic, Weighted
from robustbench_kpca.metrics.accuracy import correct
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.estimate import Values
from robustbench_kpca.records.outcomes import Outcomes

Flags = NDArray[np.bool_]
Weights = NDArray[np.int64] | None
ECE_BINS = 15
RMS_BIN = 100


def expected_calibration_error(confidence: Values, correct: Flags, weights: Weights = None) -> float:
    """Return the expected calibration error (ECE) with 15 bins of equal width.

    Source: Guo, Pleiss, Sun & Weinberger (2017), "On Calibration of Modern Neural Networks", arXiv:1706.04599:

        ECE = sum_m |B_m| / n * | accuracy(B_m) - mean confidence(B_m) |,   B_m = those in ((m - 1) / 15, m / 15]

    Bins are closed on the right, as in the paper and its code; a confidence of 0 counts in the first.

    Args:
        confidence: in [0, 1], shape (n,).
        correct: whether the prediction is right, shape (n,).
        weights: times that each image counts, shape (n,); by default once.

    Returns:
        A fraction in [0, 1].

    Raises:
        BadInputError: no images, lengths differ, or a confidence outside [0, 1].
    """
    confidence, right = _checked(confidence, correct)
    count = _counts(weights, len(confidence))
    gaps = np.bincount(_ece_bins(confidence), weights=count * (right - confidence), minlength=ECE_BINS)
    return float(np.abs(gaps).sum() / count.sum())


def rms_calibration_error(
    confidence: Values, correct: Flags, weights: Weights = None, *, compat: bool = False
) -> float:
    """Return the root mean square calibration error with bins of 100 images, the last with up to 99 more.

    Source: Hendrycks, Mazeika & Dietterich (2019), "Deep Anomaly Detection with Outlier Exposure", arXiv:1812.04606,
    with the equal-count bins of Nguyen & O'Connor (2015), arXiv:1508.05154:

        RMS = sqrt( sum_m |B_m| / n * (accuracy(B_m) - mean confidence(B_m))^2 )

    Images of equal confidence each count as their common accuracy, so the result does not depend on the order given;
    with fewer than 200 images there is a single bin. Other arguments as in `expected_calibration_error`.

    Args:
        compat: as the code of hendrycks/natural-adv-examples, and the numbers published with it: the last, most
            confident bin is left out of the sum and stays in n (with 100 to 199 images the result is 0), and images of
            equal confidence stay in the order given.

    Returns:
        A fraction in [0, 1].

    Raises:
        BadInputError: as `expected_calibration_error`, or `compat` with fewer than 100 images.
    """
    confidence, right = _checked(confidence, correct)
    order = np.argsort(confidence, kind="stable")
    confidence, right, count = confidence[order], right[order], _counts(weights, len(order))[order]
    n = float(count.sum())
    if compat and n < RMS_BIN:
        raise BadInputError(
            f"{n:.0f} images", expected=f"at least {RMS_BIN}, one bin of the published code", fix="use compat=False"
        )
    if not compat:
        same = np.cumsum(np.diff(confidence, prepend=confidence[0]) != 0)
        right = (np.bincount(same, count * right) / np.maximum(np.bincount(same, count), 1))[same]
    edges = np.append(np.arange(max(n // RMS_BIN, 1)) * RMS_BIN, n)
    places = np.cumsum(np.append(0.0, count))  # image i, in order of confidence, fills places[i] to places[i + 1]
    sums = np.diff(np.interp(edges, places, np.cumsum(np.append(0.0, count * (right - confidence)))))
    shares = np.diff(edges) / n
    if compat:
        shares[-1] = 0.0
    return float(np.sqrt(shares @ (sums / np.diff(edges)) ** 2))


def _ece_bins(confidence: Values) -> NDArray[np.int64]:
    edges = np.linspace(0, 1, ECE_BINS + 1)
    return np.maximum(np.searchsorted(edges, confidence, side="left") - 1, 0)


def _checked(confidence: Values, correct: Flags) -> tuple[Values, Values]:
    if confidence.ndim != 1 or confidence.shape != correct.shape:
        raise BadInputError(f"confidences of shape {confidence.shape} for predictions of shape {correct.shape}")
    if not ((confidence >= 0) & (confidence <= 1)).all():
        outside = int((~((confidence >= 0) & (confidence <= 1))).sum())
        raise BadInputError(f"{outside} confidences outside [0, 1]", expected="probabilities")
    return confidence, correct.astype(np.float64)


def _counts(weights: Weights, n: int) -> Values:
    count = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    if count.sum() == 0:
        raise BadInputError("no images", expected="at least one")
    return count


def _weighted(outcomes: Outcomes, error: Callable[..., float], many: "ManyOf | None") -> Weighted:
    confidence, right = np.clip(outcomes["confidence"], 0, 1), correct(outcomes)

    def value(weights: NDArray[np.int64] | None) -> float:
        return error(confidence, right, weights)

    return Weighted(
        outcomes["sample"], value, many=None if many is None else many(confidence, right.astype(np.float64))
    )


Many = Callable[[NDArray[np.int64]], Values]
ManyOf = Callable[[Values, Values], Many]
"""Confidence and correctness -> a function that computes an error of many resamples, the rows of a matrix, at once."""


def _many_ece(confidence: Values, right: Values) -> Many:
    gap, bins = right - confidence, _ece_bins(confidence)

    def many(weights: NDArray[np.int64]) -> Values:
        rows = len(weights)
        places = bins + ECE_BINS * np.arange(rows)[:, None]
        gaps = np.bincount(places.ravel(), (weights * gap).ravel(), ECE_BINS * rows).reshape(rows, ECE_BINS)
        return np.asarray(np.abs(gaps).sum(1) / weights.sum(1))

    return many


def _many_rms(confidence: Values, right: Values, *, compat: bool = False) -> Many:
    """Return `rms_calibration_error` of many resamples of n images each.

    Images stand in order of confidence; `places[i]` draws are of the first i + 1. Between two images of one level, a
    run of equal confidence, the sum of gaps grows linearly, since they count as their common accuracy.
    """
    images = _sorted(confidence.tobytes(), right.tobytes())
    n = len(confidence)
    starts = np.arange(n) if compat else np.unique(np.sort(confidence), return_index=True)[1]
    level = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, n)))
    before, last = (starts - 1)[level], (np.append(starts[1:], n) - 1)[level]
    edges = np.append(np.arange(max(n // RMS_BIN, 1)) * RMS_BIN, n)
    inner, widths = edges[1:-1], np.diff(edges)
    shares = widths / n
    if compat:
        shares[-1] = 0.0

    def many(weights: NDArray[np.int64]) -> Values:
        places, sums = images.cumulated(weights)
        rows = np.arange(len(weights))[:, None]
        image = np.array([np.searchsorted(row, inner) for row in places])
        low, high = before[image], last[image]
        first, first_sum = (np.where(low < 0, 0, part[rows, low]) for part in (places, sums))
        share = (inner - first) / (places[rows, high] - first)
        cut = first_sum + share * (sums[rows, high] - first_sum)
        bins = np.diff(np.hstack([np.zeros((len(rows), 1)), cut, sums[:, -1:]]), axis=1)
        return np.asarray(np.sqrt((bins / widths) ** 2 @ shares))

    return many


class _Sorted:
    """Images in order of confidence. Both errors of one table ask for the same resamples, one after the other."""

    def __init__(self, confidence: Values, right: Values) -> None:
        self.order = np.argsort(confidence, kind="stable")
        self.gap = (right - confidence)[self.order]
        self.latest: tuple[NDArray[np.int64], tuple[NDArray[np.int64], Values]] | None = None

    def cumulated(self, weights: NDArray[np.int64]) -> tuple[NDArray[np.int64], Values]:
        """Return draws, and sums of right minus confidence, up to each image, shape (resamples, n) each."""
        if self.latest is None or self.latest[0] is not weights:
            count = weights.take(self.order, axis=1)
            self.latest = weights, (np.cumsum(count, axis=1), np.cumsum(count * self.gap, axis=1))
        return self.latest[1]


@lru_cache(maxsize=1)
def _sorted(confidence: bytes, right: bytes) -> _Sorted:
    return _Sorted(np.frombuffer(confidence), np.frombuffer(right))


def _of(error: Callable[..., float], *, many: ManyOf | None = None, bins: int = 0, **how: Any) -> Statistic:
    """Return a calibration error as a metric that needs `bins` bins of 100 images."""

    def applies(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
        return len(outcomes) >= bins * RMS_BIN

    return Statistic(
        task="classification", unit=PERCENT, kinds=("clean", "shift"), applies=applies, lower_is_better=True,
        share=True, centred=True, weighted=partial(_weighted, error=error, many=many), **how,
    )  # fmt: skip


METRICS = (
    _of(
        expected_calibration_error,
        many=_many_ece,
        name="ece",
        title="Expected calibration error",
        what="Expected calibration error, 15 equal bins (Guo et al. 2017, arXiv:1706.04599).",
    ),
    _of(
        rms_calibration_error,
        many=_many_rms,
        name="rms_calibration_error",
        title="RMS calibration error",
        what="RMS calibration error, bins of 100 images (Hendrycks et al. 2019, arXiv:1812.04606).",
    ),
    _of(
        partial(rms_calibration_error, compat=True),
        many=partial(_many_rms, compat=True),
        bins=2,
        name="rms_calibration_error_compat",
        title="RMS calibration error as published, without the last bin",
        what="RMS calibration error as the code of natural-adv-examples computes it: without its last, most confident "
        "bin.",
    ),
)
