import numpy as np
import pytest
from scipy import stats

from robustbench_kpca.records.estimate import Estimate, proportion
from robustbench_kpca.records.trainings import over_trainings, recipes_differ


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


def test_half_widths_add_in_quadrature():
    found = over_trainings([Estimate(0.5, 0.47, 0.53, 9, ""), Estimate(0.6, 0.55, 0.65, 9, "")])
    students = 12.7062047362 * np.std([0.5, 0.6], ddof=1) / np.sqrt(2)  # t of one degree of freedom, from tables
    assert found.high - found.value == pytest.approx(np.hypot(students, 0.04))


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
        found.append(recipes_differ(a.mean(1), b.mean(1), error))
    assert np.mean(np.array(found) < 0.05) < 0.07
