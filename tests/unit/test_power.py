"""The difference that would have been found with 80 %: against closed forms, and by carrying the test out."""

import numpy as np
import pytest

from robustbench_kpca.metrics.shared.power import detectable_difference
from robustbench_kpca.records.estimate import mcnemar
from robustbench_kpca.records.trainings import recipes_differ


def test_single_models_need_the_two_quantiles_of_the_normal_distribution():
    assert detectable_difference(1, 0.5, 0.01) == pytest.approx(0.01 * (1.959964 + 0.841621), rel=1e-5)


def test_without_samples_it_is_the_textbook_t_test():
    # Cohen (1988), table 2.4.1: 80 % at 0.05, two-sided: d = 1 needs 17 a group, d = 0.5 needs 64.
    assert detectable_difference(17, 1.0, 0.0) == pytest.approx(1.0, abs=0.02)
    assert detectable_difference(64, 1.0, 0.0) == pytest.approx(0.5, abs=0.01)


def test_more_trainings_and_more_samples_show_smaller_differences():
    by_trainings = [detectable_difference(k, 0.01, 0.005) for k in (2, 3, 5, 20)]
    assert by_trainings == sorted(by_trainings, reverse=True)
    assert detectable_difference(3, 0.01, 0.002) < detectable_difference(3, 0.01, 0.01)
    assert detectable_difference(3, 0.01, 0.0, power=0.5) < detectable_difference(3, 0.01, 0.0)
    assert detectable_difference(3, 0.0, 0.0) == 0


def test_a_power_that_no_test_has():
    with pytest.raises(ValueError, match="power 1"):
        detectable_difference(3, 0.1, 0.1, power=1)


@pytest.mark.parametrize(("k", "spread", "error"), [(3, 0.02, 0.01), (5, 0.01, 0.01), (3, 0.003, 0.01)])
def test_it_is_found_four_times_in_five(k, spread, error):
    rng, difference = np.random.default_rng(k), detectable_difference(k, spread, error)
    found = []
    for _ in range(800):
        first, second = rng.normal(0, spread, k), rng.normal(difference, spread, k) + rng.normal(0, error)
        found.append(recipes_differ(first.tolist(), second.tolist(), error) < 0.05)
    assert np.mean(found) == pytest.approx(0.8, abs=0.045)


def test_two_models_are_told_apart_four_times_in_five():
    rng, n, apart = np.random.default_rng(0), 1000, 0.2  # a fifth of the images is right under one model only
    difference = detectable_difference(1, 0.0, np.sqrt(apart / n))
    found = []
    for _ in range(800):
        which = rng.choice(3, n, p=[(apart + difference) / 2, (apart - difference) / 2, 1 - apart])
        found.append(mcnemar(which == 0, which == 1) < 0.05)
    assert np.mean(found) == pytest.approx(0.8, abs=0.045)
