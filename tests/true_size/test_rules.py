"""The rules that count or multiply over n or over classes, at one, ten thousand and a million: see README.md."""

import pickle
from collections import Counter

import coded
import numpy as np
import pytest
from form import WHOLE
from scipy import stats

from robustbench_kpca import load_data
from robustbench_kpca.metrics.detection import Ranking
from robustbench_kpca.records import estimate
from robustbench_kpca.records.differences import chance_of_finding
from robustbench_kpca.tasks.classification.classes import probability_of_lower

SIZES = (1, 10**4, 10**6)
CLASSES = 1000


@pytest.mark.parametrize("n", SIZES)
def test_proportions_and_their_tests(n):
    """Wilson's interval of n of n ends at n / (n + z^2); of paired answers the binomial test is scipy's."""
    assert estimate.proportion(n, n).low == pytest.approx(n / (n + estimate.Z**2), rel=1e-12)
    better = np.arange(n) % 2 == 0
    worse = better & (np.arange(n) % 1000 != 0)
    only = int((better & ~worse).sum())
    assert estimate.mcnemar(better, worse) == pytest.approx(min(1, 2 * stats.binom.cdf(0, only, 0.5)), rel=1e-9)


@pytest.mark.parametrize("n", SIZES)
def test_labels_that_lie_low_by_chance(n):
    """Labels of 200 of 1,000 classes are no draw of all; those of all classes are, however many they are."""
    low = probability_of_lower([k % 200 for k in range(n)], CLASSES)
    assert low == pytest.approx(1 / CLASSES if n == 1 else 0.0, abs=1e-12)
    assert probability_of_lower([k % CLASSES for k in range(n)], CLASSES) == pytest.approx(1.0 if n > 1 else 0.001)


@pytest.mark.parametrize("n", SIZES)
def test_areas_under_precision_and_recall(n):
    """Of n images of no known class and as many others, in one place each: the closed form of a coin."""
    scores, outside = np.repeat(np.arange(n, dtype=float), 2), np.tile([True, False], n)
    ranking = Ranking.of(scores, outside)
    assert float(ranking.average_precision()) == pytest.approx(0.5, rel=1e-12)
    assert float(ranking.auroc()) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_the_chance_that_a_spot_check_finds_a_forged_sample(n):
    forged, checked = max(1, n // 1000), max(1, n // 100)
    expected = stats.hypergeom.sf(0, n, forged, checked)
    assert chance_of_finding(forged, n, checked) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("n", [*SIZES[:2], pytest.param(SIZES[2], marks=pytest.mark.skipif(not WHOLE, reason="long"))])
def test_intervals_by_resampling(n):
    """Of ranks, the standard error of the mean is known."""
    values = (np.arange(n) + 0.5) / n
    interval = estimate.bootstrap_mean(values)
    assert interval.high - interval.low == pytest.approx(2 * estimate.Z * values.std() / np.sqrt(n), rel=0.1, abs=1e-12)
    assert estimate.sign_flip(values, values) == 1.0


@pytest.mark.parametrize("n", SIZES)
def test_a_limit_takes_as_many_of_every_class(n):
    """Of labels 0, 1, ..., 999, 0, ...: a thousand images are one of each class; a hundred are of a hundred classes."""
    whole = coded.Coded("imagenet", "val", range(n), coded.label_of(range(n)))
    for limit in (100, CLASSES, 2 * CLASSES):
        counts = Counter(whole.spread(limit).strata)
        assert set(counts.values()) == {max(1, limit // CLASSES) if n > 1 else 1}
        assert len(counts) == min(n, limit, CLASSES)


def test_a_worker_is_sent_a_path_an_image(root):
    """Of ImageNet-C too, whose 75 cells have the same names: at most a hundred bytes an image."""
    data = load_data(f"imagenet-c:{root / 'imagenet-c'}")
    for place in data.places:
        data.cell(*place)
    sent = pickle.dumps(data)
    assert len(sent) < 2_000 + 100 * len(data)
    assert pickle.loads(sent).cell("fog", 3).ids == data.ids
