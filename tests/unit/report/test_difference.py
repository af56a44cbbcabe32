"""Intervals of differences between rows, against published values, simulation, and the test between recipes."""

import numpy as np
import pytest
from made_trainings import training
from scipy import stats

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.difference import difference, paired_proportions
from robustbench_kpca.report.rows import paired

pytestmark = pytest.mark.usefixtures("few_resamples")


def pair(both, first, second, neither):
    a = np.repeat([True, True, False, False], [both, first, second, neither])
    b = np.repeat([True, False, True, False], [both, first, second, neither])
    return a, b


def test_the_interval_is_newcombes_and_rows_that_agree_may_differ():
    found = paired_proportions(*pair(36, 12, 2, 0))  # Newcombe (1998), table II, method 10
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-5)
    small, large = (paired_proportions(*pair(n // 2, 0, 0, n // 2)) for n in (64, 640))
    assert small.low < -0.01 < 0.01 < small.high
    assert small.high > 2 * large.high > 0
    metric, column = metric_for("clean_accuracy"), Column(title="c", protocol="clean", metric="clean_accuracy")
    made = {k: training(metric, k, 0.7) for k in range(3)}
    assert difference(metric, column, {0: made[0]}, made) is None
    assert difference(metric, column, {}, made) is None


@pytest.mark.parametrize("counts", [(5, 9, 2, 4), (0, 7, 1, 3), (12, 0, 3, 5)])
def test_the_other_way_round_is_its_mirror(counts):
    a, b = pair(*counts)
    one, other = paired_proportions(a, b), paired_proportions(b, a)
    assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low))


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_it_covers_what_it_says(confidence):
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(64, [0.5, 0.2, 0.1, 0.2], 1500)
    found = [paired_proportions(*pair(*counts), confidence) for counts in drawn]
    assert np.mean([one.low <= 0.1 <= one.high for one in found]) == pytest.approx(confidence, abs=0.02)


@pytest.mark.parametrize("name", ["clean_accuracy", "ece"])
def test_the_interval_of_recipes_ends_at_zero_where_the_test_says_so(name):
    """A confidence of 1 - p is where the interval touches zero."""
    metric, column = metric_for(name), Column(title="c", protocol="clean", metric=name)
    rows = [{k: training(metric, 10 * row + k, 0.8 - 0.1 * row) for k in range(3)} for row in range(2)]
    p = paired(metric, column, *rows).p_value
    found = difference(metric, column, *rows, confidence=1 - p)
    assert min(abs(found.low), abs(found.high)) == pytest.approx(0, abs=1e-9)


def test_what_is_no_mean_has_its_own_error():
    metric, column = metric_for("ece"), Column(title="c", protocol="clean", metric="ece")
    one, other = training(metric, 1, 0.9), training(metric, 2, 0.4)
    found = difference(metric, column, {0: one}, {0: other})
    error = metric.difference_error([one[0].outcomes], [other[0].outcomes])
    assert found.high - found.low == pytest.approx(2 * stats.norm.ppf(0.975) * error)
    assert found.value == pytest.approx(one[0].metrics["ece"].value - other[0].metrics["ece"].value)
