"""The test between two rows of several trainings, against its parts computed here."""

import numpy as np
import pytest
from made_trainings import N, training
from stand_ins import posing_as

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.metrics.shared.bootstrap import paired_difference
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.trainings import OverSamples, compare
from robustbench_kpca.report.board_spec import Column
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
