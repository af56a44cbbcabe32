import numpy as np
import pytest
from scipy import stats

from robustbench_kpca.records.estimate import Estimate, proportion
from robustbench_kpca.records.trainings import difference_of_recipes, over_trainings, recipes_differ


def sure(value):
    return Estimate(value, value, value, 100, "known")


def test_without_doubt_about_samples_the_interval_is_students():
    values = [0.61, 0.66, 0.64, 0.59]
    found = over_trainings([sure(value) for value in values])
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high))
    assert (found.n, found.method) == (100, "4 trainings")


def test_equal_trainings_leave_the_interval_over_samples():
    one = proportion(30, 100)
    found = over_trainings([one, one, one])
    assert (found.value, found.low, found.high) == pytest.approx((one.value, one.low, one.high))


def test_variances_add_and_degrees_of_freedom_are_satterthwaites():
    found = over_trainings([Estimate(0.5, 0.47, 0.53, 9, ""), Estimate(0.6, 0.55, 0.65, 9, "")])
    trainings, samples = 0.05**2, (0.04 / 1.959963984540054) ** 2  # of the mean of 0.5 and 0.6, and of the half widths
    freedom = (trainings + samples) ** 2 / trainings**2
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(trainings + samples))


def test_an_interval_at_the_edge_is_as_asymmetric_as_its_parts():
    found = over_trainings([proportion(100, 100)] * 3)
    assert (found.low, found.high) == pytest.approx((proportion(100, 100).low, 1.0))


def test_an_end_on_the_wrong_side_of_its_value_adds_nothing():
    found = over_trainings([Estimate(0.04, 0.05, 0.07, 9, "")] * 3)
    assert (found.low, found.high) == pytest.approx((0.04, 0.07))


def test_one_training_has_no_spread():
    with pytest.raises(ValueError, match="spread"):
        over_trainings([sure(0.5)])
    with pytest.raises(ValueError, match="spread"):
        recipes_differ([0.5], [0.4, 0.5], 0.0)


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


def test_the_test_is_welchs_where_samples_do_not_matter():
    first, second = [0.61, 0.66, 0.64, 0.59], [0.55, 0.58, 0.57]
    assert recipes_differ(first, second, 0.0) == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue)


def test_the_test_is_normal_where_only_samples_matter():
    assert recipes_differ([0.5, 0.5], [0.4, 0.4], 0.05) == pytest.approx(2 * stats.norm.sf(2))
    assert recipes_differ([0.5, 0.5], [0.5, 0.5], 0.0) == 1


@pytest.mark.parametrize("training", [0.0, 0.02, 0.1])
def test_equal_recipes_differ_rarely(training):
    rng, found = np.random.default_rng(1), []
    for _ in range(600):
        images = rng.normal(0, 0.35, 200)
        a, b = (drawn(rng, 3, 200, training, images=images) for _ in range(2))
        error = (a.mean(0) - b.mean(0)).std(ddof=1) / np.sqrt(200)
        found.append(recipes_differ(a.mean(1).tolist(), b.mean(1).tolist(), float(error)))
    assert np.mean(np.array(found) < 0.05) < 0.07


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


@pytest.mark.parametrize("training", [0.03, 0.1, 1.0])
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


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_the_interval_of_a_difference_is_welchs_where_samples_do_not_matter(confidence):
    first, second = [0.61, 0.66, 0.64, 0.59], [0.55, 0.58, 0.57]
    found = stats.ttest_ind(first, second, equal_var=False).confidence_interval(confidence)
    assert difference_of_recipes(first, second, 0.0, confidence) == pytest.approx(
        (np.mean(first) - np.mean(second), found.low, found.high)
    )


def test_the_interval_of_a_difference_is_normal_where_only_samples_matter():
    found = difference_of_recipes([0.5, 0.5], [0.4, 0.4], 0.05)
    assert found == pytest.approx((0.1, *stats.norm.interval(0.95, loc=0.1, scale=0.05)))


@pytest.mark.parametrize("error", [0.0, 0.01, 0.1])
def test_the_interval_ends_at_zero_at_the_confidence_that_the_test_gives(error):
    first, second = [0.61, 0.66, 0.64, 0.59], [0.55, 0.58, 0.57]
    _, low, _ = difference_of_recipes(first, second, error, 1 - recipes_differ(first, second, error))
    assert low == pytest.approx(0, abs=1e-9)
