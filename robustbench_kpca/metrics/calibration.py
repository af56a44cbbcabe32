"""Calibration: how far confidence is from accuracy. ECE, and the RMS calibration error with and without its last bin.

Confidence is the largest softmax probability, so the two errors compare "how sure" with "how often right" in bins of
images of like confidence. Both are of bins, hence biased upwards on few images: compare them at equal n only.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.errors import BadInputError
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
    confidence, right = _repeated(confidence, correct, weights)
    edges = np.linspace(0, 1, ECE_BINS + 1)
    bins = np.maximum(np.searchsorted(edges, confidence, side="left") - 1, 0)
    gaps = np.bincount(bins, weights=right - confidence, minlength=ECE_BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def rms_calibration_error(
    confidence: Values, correct: Flags, weights: Weights = None, *, compat: bool = False
) -> float:
    """Return the root mean square calibration error with bins of 100 images, the last with up to 99 more.

    Source: Hendrycks, Mazeika & Dietterich (2019), "Deep Anomaly Detection with Outlier Exposure", arXiv:1812.04606,
    with the equal-count bins of Nguyen & O'Connor (2015), arXiv:1508.05154:

        RMS = sqrt( sum_m |B_m| / n * (accuracy(B_m) - mean confidence(B_m))^2 )

    Images of equal confidence each count as their common accuracy, so the result does not depend on the order given;
    with fewer than 200 images there is a single bin.

    Args:
        confidence: in [0, 1], shape (n,).
        correct: whether the prediction is right, shape (n,).
        weights: times that each image counts, shape (n,); by default once.
        compat: as the code of hendrycks/natural-adv-examples, and the numbers published with it: the last, most
            confident bin is left out of the sum and stays in n (with 100 to 199 images the result is 0), and images of
            equal confidence stay in the order given.

    Returns:
        A fraction in [0, 1].

    Raises:
        BadInputError: as `expected_calibration_error`, or `compat` with fewer than 100 images.

    """
    confidence, right = _repeated(confidence, correct, weights)
    n = len(confidence)
    if compat and n < RMS_BIN:
        raise BadInputError(
            f"{n} images", expected=f"at least {RMS_BIN}, one bin of the published code", fix="use compat=False"
        )
    if not compat:
        _, same = np.unique(confidence, return_inverse=True)
        right = (np.bincount(same, weights=right) / np.bincount(same))[same]
    order = np.argsort(confidence, kind="stable")
    bins = np.minimum(np.arange(n) // RMS_BIN, max(n // RMS_BIN, 1) - 1)
    gaps = np.bincount(bins, weights=(right - confidence)[order]) / np.bincount(bins)
    shares = np.bincount(bins) / n
    if compat:
        shares[-1] = 0.0
    return float(np.sqrt(shares @ gaps**2))


def _repeated(confidence: Values, correct: Flags, weights: Weights) -> tuple[Values, Values]:
    """Check what is given, and repeat each image as often as it counts."""
    if confidence.ndim != 1 or confidence.shape != correct.shape:
        raise BadInputError(f"confidences of shape {confidence.shape} for predictions of shape {correct.shape}")
    if not ((confidence >= 0) & (confidence <= 1)).all():
        odd = int((~((confidence >= 0) & (confidence <= 1))).sum())
        raise BadInputError(f"{odd} confidences outside [0, 1]", expected="probabilities")
    right = correct.astype(np.float64)
    if weights is not None:
        confidence, right = np.repeat(confidence, weights), np.repeat(right, weights)
    if len(confidence) == 0:
        raise BadInputError("no images", expected="at least one")
    return confidence, right


def _weighted(outcomes: Outcomes, error: Callable[..., float]) -> Weighted:
    confidence, right = np.clip(outcomes["confidence"], 0, 1), correct(outcomes)

    def value(weights: NDArray[np.int64] | None) -> float:
        return error(confidence, right, weights)

    return Weighted(outcomes["sample"], value)


def _of(error: Callable[..., float], *, bins: int = 0, **how: Any) -> Statistic:
    """Return a calibration error as a metric that needs so many bins of 100 images."""

    def applies(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
        return len(outcomes) >= bins * RMS_BIN

    return Statistic(
        task="classification", unit=PERCENT, kinds=("clean", "shift"), weighted=partial(_weighted, error=error),
        applies=applies, lower_is_better=True, **how,
    )  # fmt: skip


METRICS = (
    _of(
        expected_calibration_error,
        name="ece",
        title="Expected calibration error",
        what="Expected calibration error, 15 equal bins (Guo et al. 2017, arXiv:1706.04599).",
    ),
    _of(
        rms_calibration_error,
        name="rms_calibration_error",
        title="RMS calibration error",
        what="RMS calibration error, bins of 100 images (Hendrycks et al. 2019, arXiv:1812.04606).",
    ),
    _of(
        partial(rms_calibration_error, compat=True),
        bins=2,
        name="rms_calibration_error_compat",
        title="RMS calibration error as published, without the last bin",
        what="RMS calibration error as the code of natural-adv-examples computes it: without its last, most confident "
        "bin.",
    ),
)
