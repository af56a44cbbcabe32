"""Intervals are those of the textbook, and a single image has none."""

import math

import numpy as np
import pytest
from scipy import stats

from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.study.diagnostics.claims import heads_ahead
from robustbench_kpca.study.diagnostics.diagnosis import Measured, Unit, finding
from robustbench_kpca.study.diagnostics.tables import interval
from robustbench_kpca.study.diagnostics.totals import RatioMoments


def test_the_interval_of_a_ratio_of_means_is_the_delta_methods():
    rng = np.random.default_rng(0)
    x, y = rng.lognormal(2, 0.5, (30, 2)), rng.lognormal(0, 0.4, (30, 2))
    moments = RatioMoments()
    for first in range(0, 30, 7):
        moments.add(x[first : first + 7], y[first : first + 7])
    assert np.allclose(moments.value, np.log10(x.mean(0) / y.mean(0)))
    shares = (x / x.mean(0) - y / y.mean(0)) / math.log(10)
    assert np.allclose(moments.deviation, shares.std(0, ddof=1))
    single = RatioMoments()
    single.add(x[:, :1], y[:, :1])
    value, error = math.log10(x[:, 0].mean() / y[:, 0].mean()), shares[:, 0].std(ddof=1) / 30**0.5
    assert single.estimate().high == pytest.approx(value + stats.t.ppf(0.975, 29) * error)


def test_a_single_image_is_certain_of_nothing():
    one = Estimate(0.415, 0.415, 0.415, 1, "student")
    assert finding("", "", "", one, least=0.5, most=None).outcome == "undecided"
    assert finding("", "", "", one, least=0.1, most=None).outcome == "undecided"
    assert interval(one) == ""


def test_heads_are_ahead_by_a_paired_test():
    units = tuple(Unit(layer=0, head=head, mean=mean, deviation=1.0) for head, mean in enumerate((1.0, 0.1, -1.0)))
    measured = Measured(what="", better="more", estimate=Estimate(0, 0, 0, 25, "student"), null=None, units=units)
    assert heads_ahead(measured) == [True, False, False]  # t = 5, 0.5 and -5
    few = measured.model_copy(update={"estimate": Estimate(0, 0, 0, 1, "student")})
    assert heads_ahead(few) == [False] * 3
