import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from robustbench_kpca.records.estimate import bootstrap_mean, holm, mcnemar, mean, paired_p_value, proportion, sign_flip


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_closed_form(pair):
    hits, n = pair
    z, p = 1.959963984540054, hits / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    found = proportion(hits, n)
    assert found.low == pytest.approx(max(0, centre - half), abs=1e-9)
    assert found.high == pytest.approx(min(1, centre + half), abs=1e-9)
    assert found.low <= found.value <= found.high


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys_to_the_bit(pair):
    found, scipys = proportion(*pair), stats.binomtest(*pair).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == (scipys.low, scipys.high)
    other, scipys = proportion(*pair, 0.975), stats.binomtest(*pair).proportion_ci(0.975, method="wilson")
    assert (other.low, other.high) == pytest.approx((scipys.low, scipys.high), abs=1e-12)


def test_published_and_closed_forms():
    # Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263
    found = proportion(81, 263)
    assert (round(found.low, 4), round(found.high, 4)) == (0.2553, 0.3662)
    with pytest.raises(ValueError, match="no proportion"):
        proportion(0, 0)
    a = np.array([True] * 9 + [False] * 1 + [True] * 50)
    b = np.array([False] * 9 + [True] * 1 + [True] * 50)
    tail = sum(math.comb(10, k) for k in (0, 1)) / 2**10
    assert mcnemar(a, b) == pytest.approx(2 * tail)
    assert mcnemar(a, a) == 1.0
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_tests_and_intervals_fit_the_scores():
    a = np.array([0.9, 0.4, 0.8, 0.7, 0.6, 0.95, 0.5, 0.2])
    b = np.array([0.5, 0.5, 0.3, 0.6, 0.2, 0.90, 0.1, 0.2])
    d = a - b
    sums = [abs(np.dot(signs, d)) for signs in itertools.product([-1, 1], repeat=len(d))]
    exact = np.mean(np.array(sums) >= abs(d.sum()) - 1e-12)
    assert sign_flip(a, b) == pytest.approx(exact, abs=0.015)
    a, b = np.array([1.0, 1, 1, 1, 1, 1, 0]), np.array([0.0, 0, 0, 0, 0, 0, 0])
    assert paired_p_value(a, b) == pytest.approx(2 / 2**6)
    assert paired_p_value(a * 0.5, b) == pytest.approx(2 / 2**6, abs=0.01)
    assert mean(np.array([0.0, 1, 1])).method == "wilson"
    assert mean(np.array([0.0, 0.5, 1])).method == "bootstrap"
    values = np.random.default_rng(0).normal(0.5, 0.1, 400)
    found = bootstrap_mean(values)
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
    assert found == bootstrap_mean(values)
