"""Differences of two rows: of single models, and of recipes over the seeds that they share."""

import numpy as np
import pytest
from made_trainings import N, training
from scipy import stats
from stand_ins import posing_as

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.metrics.shared.bootstrap import paired_difference
from robustbench_kpca.metrics.shared.power import detectable_difference
from robustbench_kpca.records.estimate import Estimate, mcnemar
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.trainings import OverSamples, compare
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.difference import difference, paired_proportions
from robustbench_kpca.report.rows import compared, estimate, paired

pytestmark = pytest.mark.usefixtures("few_resamples")


def older():
    """A record whose table lacks the columns of the metric, so that the record lacks the metric."""
    samples = np.array([f"s{i}" for i in range(N)], object)
    return [posing_as(Record, outcomes=Outcomes("classification", "clean", {"sample": samples}), metrics={})]


def seeds(cells):
    return dict(enumerate(cells))


@pytest.mark.parametrize("name", ["clean_accuracy", "ece"])
def test_two_recipes_are_compared_over_seeds_and_samples(name):
    metric, column = metric_for(name), Column(title="c", protocol="clean", metric=name)
    rows = [[training(metric, 10 * row + k, 0.8 - 0.3 * row) for k in range(3)] for row in range(3)]
    numbers = [[cell[0].metrics[name].value for cell in row] for row in rows]
    outcomes = [[cell[0].outcomes for cell in row] for row in rows[:2]]
    if name == "clean_accuracy":
        right = [np.array([one["prediction"] == 0 for one in row], float) for row in outcomes]
        samples = OverSamples.of(right[0] - right[1])
    else:
        values = [[metric.weighted(one).value for one in map(Outcomes.sorted, row)] for row in outcomes]
        both = [lambda weights, row=row: float(np.mean([value(weights) for value in row])) for row in values]
        interval = paired_difference(*both, N)
        samples = OverSamples(((interval.high - interval.low) / 3.919927969080108) ** 2)
    found = paired(metric, column, *map(seeds, rows[:2]), [seeds(rows[2])])
    assert (found.first, found.second) == pytest.approx(tuple(map(np.mean, numbers[:2])))
    assert found.p_value == pytest.approx(compare(numbers, samples).p_value)
    assert 0 < found.p_value < 1


def test_rows_are_compared_on_the_seeds_that_they_share():
    """Rows that lack one of these seeds lend no spread; of fewer than two shared seeds nothing is said."""
    metric, column = metric_for("clean_accuracy"), Column(title="c", protocol="clean", metric="clean_accuracy")
    first, second, third = ({k: training(metric, 10 * row + k, 0.7) for k in range(5)} for row in range(3))
    few = {k: second[k] for k in (4, 1, 2)}
    found = compared(metric, column, first, few, [third, {1: third[1], 2: third[2]}])
    assert (found.trainings, found.recipes) in ((3, 3), (3, 2))
    same = compared(metric, column, {k: first[k] for k in (1, 2, 4)}, few, [third])
    assert found == same
    assert found.first == pytest.approx(np.mean([first[k][0].metrics["clean_accuracy"].value for k in (1, 2, 4)]))
    assert compared(metric, column, first, {0: second[0], 7: second[1]}) is None
    assert paired(metric, column, {0: first[0], 1: first[1]}, {2: second[2], 3: second[3]}) is None


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("aupr", 0.0, 1.0), ("ece", 0.0, 1.0), ("miou", 0.0, 1.0), ("corrupted_miou", 0.0, 1.0), ("mce", -1.4, 2.4)],
)
def test_the_interval_of_a_share_stays_in_its_range(name, low, high):
    """A ratio, such as mCE, can be above 1. Half width: 12.7 (t of 1 degree) times 0.15, the standard error."""
    cells = [
        [posing_as(Record, metrics={name: Estimate(value, value - 1e-9, value + 1e-9, N, "")})]
        for value in (0.35, 0.65)
    ]
    found = estimate(metric_for(name), Column(title="c", protocol="p", metric=name), cells)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.01)


def test_a_training_without_the_metric_is_left_out():
    metric, column = metric_for("clean_accuracy"), Column(title="c", protocol="clean", metric="clean_accuracy")
    first, second = ([training(metric, 10 * row + k, 0.7) for k in range(2)] for row in range(2))
    with_older = {**seeds(first), 2: older()}
    assert paired(metric, column, with_older, seeds(second)) == paired(metric, column, seeds(first), seeds(second))
    assert estimate(metric, column, [older(), *first]) == estimate(metric, column, first)
    assert paired(metric, column, seeds(first), {0: older(), 1: second[0]}) is None, "one training against two"
    assert paired(metric, column, {0: older()}, {0: second[0]}) is None
    assert estimate(metric, column, [older()]) is None


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


SURE = OverSamples(0.0)


@pytest.mark.parametrize("pairs", [8, 34])
def test_without_samples_it_is_the_paired_t_test(pairs):
    """Cohen (1988): 80 % at 0.05, two-sided: 34 pairs for d = 0.5, and 8 for 1.16. A pair's spread is sqrt(2) times."""
    found = detectable_difference((2, pairs), np.sqrt(0.5), SURE)
    limit = stats.t.isf(0.025, pairs - 1)
    assert stats.nct.sf(limit, pairs - 1, found * np.sqrt(pairs)) == pytest.approx(0.8, abs=0.01)
    assert found == pytest.approx({34: 0.5, 8: 1.16}[pairs], abs=0.02)


@pytest.mark.parametrize(("recipes", "k", "spread"), [(2, 3, 0.02), (4, 5, 0.01)])
def test_it_is_found_four_times_in_five(recipes, k, spread):
    rng, error = np.random.default_rng(k), 0.01
    samples = OverSamples(error**2)
    difference, p_values = detectable_difference((recipes, k), spread, samples), []
    for _ in range(800):
        numbers = rng.normal(0, 1, k) + rng.normal(0, spread, (recipes, k))
        numbers[0] += difference + rng.normal(0, error)
        p_values.append(compare(numbers, samples).p_value)
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.8, abs=0.045)


def test_powers_of_single_models_and_of_recipes():
    rng, n, apart = np.random.default_rng(0), 1000, 0.2  # a fifth of the images is right under one model only
    difference = detectable_difference((2, 1), 0.0, OverSamples(apart / n))
    found = []
    for _ in range(800):
        which = rng.choice(3, n, p=[(apart + difference) / 2, (apart - difference) / 2, 1 - apart])
        found.append(mcnemar(which == 0, which == 1) < 0.05)
    assert np.mean(found) == pytest.approx(0.8, abs=0.045)
    found = detectable_difference((2, 1), 0.5, OverSamples(0.01**2))
    assert found == pytest.approx(0.01 * (1.959964 + 0.841621), rel=1e-5)
    by_seeds = [detectable_difference((2, k), 0.01, OverSamples(0.005**2)) for k in (2, 3, 5, 20)]
    assert by_seeds == sorted(by_seeds, reverse=True)
    assert detectable_difference((8, 3), 0.01, OverSamples(2e-5)) < detectable_difference(
        (2, 3), 0.01, OverSamples(2e-5)
    )
    by_samples = [detectable_difference((4, 5), 0.01, OverSamples(1 / n)) for n in (1e4, 1e5, 1e6)]
    assert by_samples == sorted(by_samples, reverse=True)
    assert detectable_difference((2, 3), 0.01, SURE, power=0.5) < detectable_difference((2, 3), 0.01, SURE)
    assert detectable_difference((2, 3), 0.0, SURE) == 0
