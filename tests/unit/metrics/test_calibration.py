import math

import numpy as np
import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.metrics.calibration import expected_calibration_error, rms_calibration_error
from robustbench_kpca.metrics.shared.bootstrap import Resampled, bootstraps
from robustbench_kpca.records.outcomes import Outcomes


def simulated(seed, n, over=0.15):
    """Confidences, and predictions right `over` less often than they promise."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(3, 2, size=n)
    return confidence, rng.random(n) < np.clip(confidence - over, 0, 1)


# ECE


def test_ece_by_hand():
    confidence = np.array([0.31, 0.33, 0.91, 0.93, 0.92])
    correct = np.array([True, False, True, False, False])
    expected = 2 / 5 * (0.5 - 0.32) + 3 / 5 * (0.92 - 1 / 3)
    assert expected_calibration_error(confidence, correct) == pytest.approx(expected, abs=1e-12)
    # 0.6 = 9/15 is alone in its bin or with 0.59, but not with 0.61: errors of 0.59 and 0.6 cancel
    correct = np.array([False, True])
    with_lower = expected_calibration_error(np.array([0.59, 9 / 15]), correct)
    assert with_lower == pytest.approx(abs(0.59 - (1 - 0.6)) / 2, abs=1e-12)
    with_higher = expected_calibration_error(np.array([9 / 15, 0.61]), correct)
    assert with_higher == pytest.approx((0.6 + 0.39) / 2, abs=1e-12)
    ends = np.array([0.0, 1.0])
    assert expected_calibration_error(ends, np.array([True, False])) == 1
    assert expected_calibration_error(ends, np.array([False, True])) == 0
    confidence, correct = simulated(0, 200_000)
    promised = np.mean(confidence - np.clip(confidence - 0.15, 0, 1))
    assert expected_calibration_error(confidence, correct) == pytest.approx(promised, abs=0.005)
    assert rms_calibration_error(*simulated(0, 200_000, over=0.0)) < 0.06  # bins of 100: about sqrt(p (1-p) / 100)


@pytest.mark.parametrize("seed", range(5))
def test_torchmetrics_agrees(seed):
    torch = pytest.importorskip("torch")
    classification = pytest.importorskip("torchmetrics.classification", exc_type=ImportError)
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(500, 10)) * 2
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.where(rng.random(500) < 0.5, softmax.argmax(axis=1), rng.integers(0, 10, 500))
    theirs = classification.MulticlassCalibrationError(10, n_bins=15, norm="l1")(
        torch.tensor(softmax), torch.tensor(labels)
    )
    found = expected_calibration_error(softmax.max(axis=1), softmax.argmax(axis=1) == labels)
    assert found == pytest.approx(float(theirs), abs=1e-6)


# RMS


def test_rms_by_hand():
    # 100 images of confidence 0.5, 40 right; 150 of 0.9, 60 right: gaps 0.1 and 0.5
    confidence = np.repeat([0.5, 0.9], [100, 150])
    correct = np.r_[np.arange(100) < 40, np.arange(150) < 60]
    expected = math.sqrt(0.4 * 0.1**2 + 0.6 * 0.5**2)
    assert rms_calibration_error(confidence, correct) == pytest.approx(expected, abs=1e-12)
    without_last = math.sqrt(0.4 * 0.1**2)
    assert rms_calibration_error(confidence, correct, compat=True) == pytest.approx(without_last, abs=1e-12)
    confidence, correct = np.full(99, 0.8), np.arange(99) < 33
    assert rms_calibration_error(confidence, correct) == pytest.approx(0.8 - 1 / 3, abs=1e-12)
    with pytest.raises(BadInputError, match="99 images"):
        rms_calibration_error(confidence, correct, compat=True)
    one_bin = rms_calibration_error(np.full(199, 0.8), np.arange(199) < 33, compat=True)
    assert one_bin == 0, "what the published code makes of a single bin"


def test_ties_do_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    confidence = np.round(rng.random(430), 1)
    correct = rng.random(430) < 0.5
    found = rms_calibration_error(confidence, correct)
    moved = [rng.permutation(430) for _ in range(20)]
    assert [rms_calibration_error(confidence[m], correct[m]) for m in moved] == pytest.approx([found] * 20, abs=1e-12)
    published = {round(rms_calibration_error(confidence[m], correct[m], compat=True), 9) for m in moved}
    assert len(published) > 1


# both

EITHER = pytest.mark.parametrize("error", [expected_calibration_error, rms_calibration_error])


@EITHER
def test_weights_are_repetitions(error):
    confidence, correct = simulated(1, 350)
    weights = np.random.default_rng(2).integers(0, 4, 350)
    again = np.repeat(np.arange(350), weights)
    assert error(confidence, correct, weights) == pytest.approx(error(confidence[again], correct[again]), abs=1e-12)


@EITHER
def test_the_bootstrap_takes_them(error):
    confidence, correct = simulated(3, 400)
    whole = Resampled(lambda weights: error(confidence, correct, weights))
    [(low, high)] = bootstraps([whole], 400, resamples=50)
    assert 0 < low < high < 0.5


@EITHER
@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([], [], "no images"),
        ([0.5, 1.2], [True, True], r"1 confidences .*\[0, 1\]"),
        ([0.5, math.nan], [True, True], r"1 confidences .*\[0, 1\]"),
        ([0.5], [True, True], r"\(1,\).*\(2,\)"),
    ],
    ids=["empty", "above 1", "nan", "lengths"],
)
def test_refusals(error, confidence, correct, message):
    with pytest.raises(BadInputError, match=message):
        error(np.array(confidence, dtype=float), np.array(correct, dtype=bool))


@pytest.mark.parametrize("name", ["ece", "rms_calibration_error", "rms_calibration_error_compat"])
@pytest.mark.parametrize("n", [230, 400])
def test_many_resamples_at_once_are_each_by_itself(name, n):
    rng = np.random.default_rng(n)
    columns = {
        "confidence": rng.integers(0, 40, n) / 40,
        "label": np.zeros(n, int),
        "prediction": rng.integers(0, 2, n),
    }
    outcomes = Outcomes("classification", "clean", columns | {"sample": np.array([f"s{i}" for i in range(n)], object)})
    found = metric_for(name).weighted(outcomes)
    weights = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(30)])
    assert found.many(weights) == pytest.approx([found.value(row) for row in weights], rel=1e-12)


@pytest.mark.parametrize("name", ["ece", "rms_calibration_error"])
def test_the_interval_holds_the_mean_over_sets_of_as_many_images_and_the_value_itself(name):
    metric, n, trials = metric_for(name), 256, 60
    rng = np.random.default_rng(3)

    def drawn():
        confidence = 0.3 + 0.7 * rng.beta(5, 2, n)
        right = rng.random(n) < confidence - 0.02
        columns = {"sample": np.arange(n).astype(str).astype(object), "confidence": confidence,
                   "label": np.ones(n, int), "prediction": right.astype(int)}  # fmt: skip
        return metric.weighted(Outcomes("classification", "clean", columns))

    mean = np.mean([drawn().value(None) for _ in range(1500)])
    held = 0
    for _ in range(trials):
        found = drawn()
        value = found.value(None)
        ((low, high),) = bootstraps([Resampled(found.value, found.many, value)], n, resamples=200)
        assert low <= value <= high
        held += low <= mean <= high
    assert held >= trials * 0.95 - 4 * math.sqrt(trials * 0.95 * 0.05)
    assert metric.centred
