import math

import numpy as np
import pytest
from scipy import stats

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics.shared.bootstrap import Resampled, bootstraps, paired_difference
from robustbench_kpca.records.estimate import bootstrap_mean, resampled


def mean_of(values):
    return lambda weights: float(weights @ values / weights.sum())


def bootstrap(statistic, n, **how):
    return bootstraps([Resampled(statistic)], n, **how)[0]


def test_a_mean_has_the_interval_of_bootstrap_mean():
    values = np.random.default_rng(0).random(80)
    known = bootstrap_mean(values, seed=5)
    assert bootstrap(mean_of(values), 80, seed=5) == pytest.approx((known.low, known.high), abs=1e-12)
    error = values.std() / math.sqrt(80)
    # two quantiles at 2.5 % of 2,000 resamples: standard error sqrt(p q / B) / density = 0.06 standard errors
    assert bootstrap(mean_of(values), 80, seed=6) == pytest.approx((known.low, known.high), abs=0.3 * error)
    assert bootstrap(mean_of(values), 80, seed=6) != bootstrap(mean_of(values), 80, seed=5)


def test_weights_are_resamples():
    seen = []
    bootstrap(lambda weights: seen.append(weights) or 0.0, 7, resamples=400)
    table = np.array(seen)
    assert table.dtype == np.int64
    assert table.min() == 0
    assert set(table.sum(axis=1)) == {7}
    # multinomial: mean 1, variance 1 - 1/n, correlation -1/(n-1); 400 x 7 draws
    assert table.mean() == 1
    assert table.var() == pytest.approx(1 - 1 / 7, abs=0.1)
    covariance = np.cov(table, rowvar=False)
    assert covariance[~np.eye(7, dtype=bool)].mean() == pytest.approx(-1 / 7, abs=0.03)


def test_coverage_on_small_samples():
    rng = np.random.default_rng(2)
    hits = 0
    for trial in range(300):
        values = rng.normal(size=30)
        low, high = bootstrap(mean_of(values), 30, seed=trial, resamples=199)
        hits += low <= 0 <= high
    # Nominal 95 %. The percentile interval at n = 30 is short by sqrt(29/30) and by normal against t quantiles:
    # 93.0 % expected.
    expected = stats.t.cdf(1.96 * math.sqrt(29 / 30), 29) * 2 - 1
    assert expected == pytest.approx(0.936, abs=0.005)
    assert abs(hits / 300 - expected) < 4 * math.sqrt(expected * (1 - expected) / 300)


def test_strata_keep_their_sizes():
    strata = np.array(["in"] * 9 + ["out"] * 2)
    seen = []
    bootstrap(lambda weights: seen.append(weights) or 0.0, 11, resamples=50, strata=strata)
    table = np.array(seen)
    assert set(table[:, :9].sum(axis=1)) == {9}
    assert set(table[:, 9:].sum(axis=1)) == {2}
    assert len({tuple(row) for row in table}) > 40
    seen.clear()
    bootstrap(lambda weights: seen.append(weights) or 0.0, 11, resamples=50)
    assert len({row[:9].sum() for row in seen}) > 1


def test_strata_give_the_two_sample_interval():
    rng = np.random.default_rng(3)
    values = np.r_[rng.normal(size=300), rng.normal(2, 3, size=100)]
    outer = np.arange(400) >= 300

    def gap(weights):
        return float(weights[outer] @ values[outer] / 100 - weights[~outer] @ values[~outer] / 300)

    low, high = bootstrap(gap, 400, strata=outer)
    error = math.sqrt(values[outer].var() / 100 + values[~outer].var() / 300)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.08)
    values = np.random.default_rng(4).random(20)
    one = bootstrap(mean_of(values), 20, strata=np.zeros(20))
    assert one == bootstrap(mean_of(values), 20)


def test_pairs_use_the_same_images_and_p_values_are_never_zero():
    rng = np.random.default_rng(5)
    shared = rng.normal(size=200) * 10
    a, b = shared + rng.normal(size=200), shared + rng.normal(size=200) - 0.3
    found = paired_difference(mean_of(a), mean_of(b), 200)
    error = (a - b).std() / math.sqrt(200)
    assert found.value == pytest.approx((a - b).mean(), abs=1e-12)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.08)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(abs(found.value) / error), abs=0.02)
    assert found.high - found.low < 0.2 * np.subtract(*bootstrap(mean_of(a), 200)[::-1])
    a, b = np.linspace(0, 1, 50), np.linspace(0, 1, 50) + 3
    assert paired_difference(mean_of(a), mean_of(b), 50, resamples=99).p_value == 2 / 100
    there, back = (paired_difference(mean_of(x), mean_of(y), 50) for x, y in ((a, a[::-1] ** 2), (a[::-1] ** 2, a)))
    assert there.p_value == back.p_value
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
    assert paired_difference(mean_of(a), mean_of(a), 50).p_value == 1


@pytest.mark.parametrize(("n", "least"), [(1, 1.0), (2, 0.5), (6, 1 / 32), (50, 2 / 100)])
def test_few_images_prove_little(n, least):
    assert paired_difference(mean_of(np.zeros(n)), mean_of(np.ones(n)), n, resamples=99).p_value == least


@pytest.mark.parametrize("centre", [None, 0.8])
def test_a_centred_interval_is_the_basic_one_shifted_to_its_value(centre):
    values = np.random.default_rng(8).random(40)
    ((low, high),) = bootstraps([Resampled(mean_of(values), centre=centre)], 40)
    left, right = bootstrap(mean_of(values), 40)
    middle = np.concatenate([values[drawn].mean(1) for drawn in resampled(40, 0, 2000)]).mean()
    expected = (left, right) if centre is None else (centre + middle - right, centre + middle - left)
    assert (low, high) == pytest.approx(expected)


def test_the_p_value_rejects_a_true_null_as_often_as_it_says():
    rng = np.random.default_rng(6)
    below = 0
    for trial in range(300):
        a, b = rng.normal(size=(2, 40))
        below += paired_difference(mean_of(a), mean_of(b), 40, seed=trial, resamples=199).p_value <= 0.1
    expected = 2 * stats.t.sf(stats.norm.isf(0.05) * math.sqrt(39 / 40), 39)
    assert abs(below / 300 - expected) < 4 * math.sqrt(expected * (1 - expected) / 300)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap(mean_of(np.zeros(0)), 0), "0 images"),
        (lambda: bootstrap(mean_of(np.zeros(2)), 2, resamples=0), "0 resamples"),
        (lambda: bootstrap(lambda weights: 1.0 if weights[0] else math.nan, 3), r"\d+ of 2000"),
        (lambda: bootstrap(mean_of(np.zeros(3)), 3, strata=np.zeros(2)), "groups of 2 images"),
    ],
    ids=["no image", "no resample", "nan", "strata"],
)
def test_refusals(call, message):
    with pytest.raises(BadInputError, match=message):
        call()
