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
from robustbench_kpca.records.trainings import recipes_differ
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.rows import estimate, paired

pytestmark = pytest.mark.usefixtures("few_resamples")


def older():
    """A record whose table lacks the columns of the metric, so that the record lacks the metric."""
    samples = np.array([f"s{i}" for i in range(N)], object)
    return [posing_as(Record, outcomes=Outcomes("classification", "clean", {"sample": samples}), metrics={})]


@pytest.mark.parametrize("name", ["clean_accuracy", "ece"])
def test_two_recipes_are_compared_over_trainings_and_samples(name):
    metric, column = metric_for(name), Column(title="c", protocol="clean", metric=name)
    rows = [[training(metric, 10 * row + k, 0.8 - 0.3 * row) for k in range(3)] for row in range(2)]
    numbers = [[cell[0].metrics[name].value for cell in row] for row in rows]
    outcomes = [[cell[0].outcomes for cell in row] for row in rows]
    if name == "clean_accuracy":
        means = [np.mean([one["prediction"] == 0 for one in row], axis=0) for row in outcomes]
        error = np.std(means[0] - means[1], ddof=1) / np.sqrt(N)
    else:
        values = [[metric.weighted(one).value for one in map(Outcomes.sorted, row)] for row in outcomes]
        both = [lambda weights, row=row: float(np.mean([value(weights) for value in row])) for row in values]
        interval = paired_difference(*both, N)
        error = (interval.high - interval.low) / 3.919927969080108
    found = paired(metric, column, *rows)
    assert (found.first, found.second) == pytest.approx(tuple(map(np.mean, numbers)))
    assert found.p_value == pytest.approx(recipes_differ(*numbers, error))
    assert 0 < found.p_value < 1


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
    assert paired(metric, column, [*first, older()], second) == paired(metric, column, first, second)
    assert estimate(metric, column, [older(), *first]) == estimate(metric, column, first)
    assert paired(metric, column, first, [older(), second[0]]) is None, "one training against two"
    assert paired(metric, column, [older()], [second[0]]) is None
    assert estimate(metric, column, [older()]) is None
