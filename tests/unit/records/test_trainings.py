import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from robustbench_kpca.records.estimate import Estimate, proportion
from robustbench_kpca.records.trainings import OverSamples, compare, over_trainings, residual_variance

SURE = OverSamples(0.0)
ROWS = {"A": [50, 52, 51, 53], "B": [53, 54, 55, 56], "C": [51, 53, 52, 56]}


def sure(value):
    return Estimate(value, value, value, 100, "known")


def test_intervals_of_one_or_equal_trainings():
    values = [0.61, 0.66, 0.64, 0.59]
    found = over_trainings([sure(value) for value in values])
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high))
    assert (found.n, found.method) == (100, "4 trainings")
    one = proportion(30, 100)
    found = over_trainings([one, one, one])
    assert (found.value, found.low, found.high) == pytest.approx((one.value, one.low, one.high))
    with pytest.raises(ValueError, match="spread"):
        over_trainings([sure(0.5)])
    with pytest.raises(ValueError, match="spread"):
        compare([[0.5], [0.4]], SURE)


def test_variances_add_and_ends_are_as_asymmetric_as_their_parts():
    found = over_trainings([Estimate(0.5, 0.47, 0.53, 9, ""), Estimate(0.6, 0.55, 0.65, 9, "")])
    trainings, samples = 0.05**2, (0.04 / 1.959963984540054) ** 2  # of the mean of 0.5 and 0.6, and of the half widths
    freedom = (trainings + samples) ** 2 / trainings**2
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(trainings + samples))
    found = over_trainings([proportion(100, 100)] * 3)
    assert (found.low, found.high) == pytest.approx((proportion(100, 100).low, 1.0))
    found = over_trainings([Estimate(0.04, 0.05, 0.07, 9, "")] * 3)
    assert (found.low, found.high) == pytest.approx((0.04, 0.07))


def drawn(rng, k, n, training=0.02, sample=0.35, rest=0.2, images=None):
    """Scores of k trainings on n samples around 0: x = a_s + b_i + e."""
    images = rng.normal(0, sample, n) if images is None else images
    return rng.normal(0, training, (k, 1)) + images + rng.normal(0, rest, (k, n))


def interval(scores):
    error = scores.std(ddof=1) / np.sqrt(len(scores)) * 1.96
    return Estimate(scores.mean(), scores.mean() - error, scores.mean() + error, len(scores), "normal")


@pytest.mark.parametrize(("k", "training"), [(2, 0.02), (3, 0.02), (3, 0.0), (5, 0.1)])
def test_the_interval_covers_the_mean_of_the_recipe(k, training):
    rng = np.random.default_rng(k)
    found = [over_trainings([interval(s) for s in drawn(rng, k, 200, training)]) for _ in range(600)]
    assert np.mean([one.low <= 0 <= one.high for one in found]) > 0.93


def test_seeds_are_blocks_and_samples_the_second_source():
    # The residual is 3.3333 with 6 degrees; t(6) is 2.44691, and 3.28746 with Bonferroni for three pairs.
    table = np.array(list(ROWS.values()), float)
    assert residual_variance(table) == pytest.approx(3.3333 / 6, abs=1e-4)
    found = compare([ROWS["B"], ROWS["A"], ROWS["C"]], SURE)
    assert (found.difference, found.error, found.freedom) == pytest.approx((3, 0.52705, 6), abs=1e-5)
    assert (found.trainings, found.recipes) == (4, 3)
    assert found.interval() == pytest.approx((3 - 2.44691 * 0.52705, 3 + 2.44691 * 0.52705), abs=1e-4)
    assert found.interval(1 - 0.05 / 3)[0] == pytest.approx(3 - 3.28746 * 0.52705, abs=1e-4)
    assert np.sqrt(table[:2].var(1, ddof=1).sum() / 4) == pytest.approx(0.91287, abs=1e-5), "without blocks"
    # Mean squares 0.25, 0.55556 and 0.138889, so the variance is 0.66667 / 12.
    differences = np.array([[1, 0, 0, 1], [1, 0, 1, 1], [0, 0, 0, 1]], float)
    samples = OverSamples.of(differences)
    assert (samples.variance, samples.shared, samples.n) == pytest.approx((0.046296, 0.138889 / 12, 4), abs=1e-6)
    found = compare([differences.mean(1), np.zeros(3)], samples)
    assert (found.error, found.freedom) == pytest.approx((0.235702, 3.236), abs=1e-3)
    assert found.interval()[1] == pytest.approx(0.5 + 3.0551 * 0.235702, abs=1e-3)
    found = compare([[0.5, 0.5], [0.4, 0.4]], OverSamples(0.05**2))
    assert found.p_value == pytest.approx(2 * stats.norm.sf(2))
    assert found.interval() == pytest.approx(stats.norm.interval(0.95, loc=0.1, scale=0.05))
    assert compare([[0.5, 0.5], [0.5, 0.5]], SURE).p_value == 1
    assert compare([[0.5, 0.5], [0.25, 0.25]], SURE).p_value == 0
    assert compare([[0.5, 0.5], [0.4, 0.4]], OverSamples.of(np.ones((2, 1)))).p_value == 1, "one sample"


def test_a_pair_that_spreads_more_has_its_own_spread():
    found = compare([ROWS["A"], [53, 60, 47, 64], ROWS["B"], ROWS["C"]], SURE)
    expected = stats.ttest_rel(ROWS["A"], [53, 60, 47, 64])
    assert (found.freedom, found.recipes, found.p_value) == pytest.approx((3, 2, expected.pvalue))
    # D = (1, 1, 1, 4) has the variance 2.25, and twice that of all is 1.9444: F is 1.37, and 5.39 would be clear.
    found = compare([[51, 53, 52, 57], ROWS["A"], ROWS["B"]], SURE)
    assert (found.error**2, found.freedom, found.recipes) == pytest.approx((2.25 / 4, 6, 3))
    found = compare([ROWS["B"], ROWS["A"]], SURE)
    assert (found.error, found.freedom, found.recipes) == pytest.approx((0.40825, 3, 2), abs=1e-5)
    expected = stats.ttest_rel(ROWS["B"], ROWS["A"])
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval(0.9) == pytest.approx(tuple(expected.confidence_interval(0.9)))


@given(st.lists(st.floats(-50, 50), min_size=4, max_size=4))
def test_what_trainings_of_one_seed_share_changes_nothing(shift):
    table = np.array(list(ROWS.values()), float)
    one, other = compare(table, SURE), compare(table + shift, SURE)
    assert (one.difference, one.error, one.freedom) == pytest.approx((other.difference, other.error, other.freedom))


def test_no_source_has_a_variance_below_zero():
    """Trainings that agree by chance, and samples that do, leave what the other source alone shows."""
    agree = np.array([[1, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1]], float)  # 2 and 1 right in each
    samples = OverSamples.of(agree)
    found = compare([agree.mean(1), np.zeros(3)], samples)
    assert found.error**2 == pytest.approx(max(samples.variance, 0.0))
    samples = OverSamples.of(agree.T)
    found = compare([agree.T.mean(1), np.zeros(6)], samples)
    assert found.error**2 == pytest.approx(agree.T.mean(1).var(ddof=1) / 6)


@pytest.mark.parametrize(("k", "arms"), [(3, 2), (3, 4), (5, 4)])
@pytest.mark.parametrize("training", [0.0, 0.1])
def test_equal_recipes_differ_rarely(training, k, arms):
    """Seeds alone move every recipe by far more than chance does."""
    rng, p_values = np.random.default_rng(1), []
    for _ in range(400):
        images, seeds = rng.normal(0, 0.35, 200), rng.normal(0, 1, (k, 1))
        scores = [seeds + drawn(rng, k, 200, training, images=images) for _ in range(arms)]
        samples = OverSamples.of(scores[0] - scores[1])
        p_values.append(compare([table.mean(1) for table in scores], samples).p_value)
    assert np.mean(np.array(p_values) < 0.05) < 0.075


def right_or_wrong(rng, k, n, training, level=0.2, images=None):
    """Whether each of k trainings has each of n images right; the share of a recipe is Phi(level / sd)."""
    images = rng.normal(0, 1.2, n) if images is None else images
    return (level + rng.normal(0, training, (k, 1)) + images + rng.normal(0, 1, (k, n)) > 0).astype(float)


def share(training, level=0.2):
    return stats.norm.cdf(level / np.sqrt(1 + 1.2**2 + training**2))


def hierarchical(rng, scores, resamples=200):
    """Percentile interval of the mean where trainings are drawn with replacement, and samples, too."""
    k, n = scores.shape
    trainings, samples = (rng.multinomial(size, np.full(size, 1 / size), resamples) / size for size in (k, n))
    return np.quantile(((trainings @ scores) * samples).sum(1), [0.025, 0.975])


@pytest.mark.parametrize("training", [0.1, 1.0])
def test_three_trainings_cover_where_the_hierarchical_bootstrap_does_not(training):
    rng, truth, found = np.random.default_rng(3), share(training), []
    for _ in range(200):
        scores = right_or_wrong(rng, 3, 200, training)
        ours = over_trainings([proportion(int(one.sum()), 200) for one in scores])
        low, high = hierarchical(rng, scores)
        found.append((ours.low <= truth <= ours.high, low <= truth <= high, (high - low) / (ours.high - ours.low)))
    covers, bootstrap_covers, width = np.mean(found, axis=0)
    assert covers > 0.93
    assert width < 1
    if training == 1.0:  # trainings differ more than samples: three of them, drawn again, show too little of it
        assert bootstrap_covers < 0.85


@pytest.mark.parametrize("error", [0.0, 0.01, 0.1])
def test_the_interval_ends_at_zero_at_the_confidence_that_the_test_gives(error):
    found = compare([[0.61, 0.66, 0.64, 0.59], [0.55, 0.58, 0.57, 0.56]], OverSamples(error**2))
    assert found.interval(1 - found.p_value)[0] == pytest.approx(0, abs=1e-9)
