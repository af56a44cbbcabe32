"""The difference that would have been found with 80 %: against closed forms, and by carrying the test out."""

import numpy as np
import pytest
from scipy import stats

from robustbench_kpca.metrics.shared.power import detectable_difference
from robustbench_kpca.records.estimate import mcnemar
from robustbench_kpca.records.trainings import OverSamples, compare

SURE = OverSamples(0.0)


def test_single_models_need_the_two_quantiles_of_the_normal_distribution():
    found = detectable_difference((2, 1), 0.5, OverSamples(0.01**2))
    assert found == pytest.approx(0.01 * (1.959964 + 0.841621), rel=1e-5)


@pytest.mark.parametrize("pairs", [8, 34])
def test_without_samples_it_is_the_paired_t_test(pairs):
    """Cohen (1988): 80 % at 0.05, two-sided: 34 pairs for d = 0.5, and 8 for 1.16. A pair's spread is sqrt(2) times."""
    found = detectable_difference((2, pairs), np.sqrt(0.5), SURE)
    limit = stats.t.isf(0.025, pairs - 1)
    assert stats.nct.sf(limit, pairs - 1, found * np.sqrt(pairs)) == pytest.approx(0.8, abs=0.01)
    assert found == pytest.approx({34: 0.5, 8: 1.16}[pairs], abs=0.02)


def test_more_seeds_recipes_and_samples_show_smaller_differences():
    by_seeds = [detectable_difference((2, k), 0.01, OverSamples(0.005**2)) for k in (2, 3, 5, 20)]
    assert by_seeds == sorted(by_seeds, reverse=True)
    assert detectable_difference((8, 3), 0.01, OverSamples(2e-5)) < detectable_difference(
        (2, 3), 0.01, OverSamples(2e-5)
    )
    by_samples = [detectable_difference((4, 5), 0.01, OverSamples(1 / n)) for n in (1e4, 1e5, 1e6)]
    assert by_samples == sorted(by_samples, reverse=True)
    assert detectable_difference((2, 3), 0.01, SURE, power=0.5) < detectable_difference((2, 3), 0.01, SURE)
    assert detectable_difference((2, 3), 0.0, SURE) == 0


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


def test_two_models_are_told_apart_four_times_in_five():
    rng, n, apart = np.random.default_rng(0), 1000, 0.2  # a fifth of the images is right under one model only
    difference = detectable_difference((2, 1), 0.0, OverSamples(apart / n))
    found = []
    for _ in range(800):
        which = rng.choice(3, n, p=[(apart + difference) / 2, (apart - difference) / 2, 1 - apart])
        found.append(mcnemar(which == 0, which == 1) < 0.05)
    assert np.mean(found) == pytest.approx(0.8, abs=0.045)
