"""Gamma by axis and eigenvalues by layer, against closed forms and the published procedures written out in numpy."""

import csv
import io
import math
from statistics import fmean, median

import numpy as np
import pytest
import torch
from made_layers import gram_of, randn
from torch import nn

from robustbench_kpca.study.diagnostics import CLAIMS, tables
from robustbench_kpca.study.diagnostics.claims.gamma import differences
from robustbench_kpca.study.diagnostics.diagnosis import Judged
from robustbench_kpca.study.diagnostics.kernel import Spectrum
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.totals import Totals, block_orders

TOKENS, WIDTH, HEADS, IMAGES, LAYERS = 12, 5, 2, 3, 2


def layers():
    ids = tuple("abc"[:IMAGES])
    for number in range(LAYERS):
        q, k, v = (randn(IMAGES, HEADS, TOKENS, WIDTH, seed=3 * number + part) for part in range(3))
        yield Layer(number, str(number), nn.Identity(), k, q, k, v, v, tuple(range(HEADS)), ids, 0)


def results(name):
    claim = CLAIMS.get(name)
    units = [(number, head) for number in range(LAYERS) for head in range(HEADS)]
    totals = Totals(claim, units, 20)
    totals.add([claim.observe(layer) for layer in layers()], block_orders(0, "0", 20, IMAGES))
    return claim, totals.results()


def with_gamma(*gamma):
    """A spectrum and one axis of which gamma is known: K = diag(N gamma) and a = 1."""
    values = torch.tensor(gamma, dtype=torch.float64)
    n = len(values)
    zero = torch.zeros((), dtype=torch.float64)
    return Spectrum(values, torch.diag(n * values), zero, values, None), torch.ones(n, 1, dtype=torch.float64)


@pytest.mark.parametrize("n", [2, 5, 197])
def test_gamma_that_counts_up(n):
    """Of 1 ... N, |i - j| has the mean (N + 1) / 3 and variance (N + 1) (N - 2) / 18; (j - i) / j has mean 1 / 2."""
    found = differences(*with_gamma(*range(1, n + 1)))
    assert float(found.absolute) == pytest.approx((n + 1) / 3)
    assert float(found.absolute_spread) == pytest.approx(math.sqrt((n + 1) * (n - 2) / 18))
    assert float(found.relative) == pytest.approx(0.5)  # sum_j (1 - 1/j - ... ) = sum_j (j - 1) / 2 = pairs / 2


def test_gamma_by_axis_is_the_papers_procedure():
    """Section 2.2.2: a_d = (I - 1_N)^+ G^-1 V[:, d], gamma = K a_d / (N a_d), and its differences, head by head."""
    _, found = results("gamma")
    expected = {name: [] for name in ("absolute", "absolute_spread", "relative", "relative_spread")}
    for layer in layers():
        rows = {name: [] for name in expected}
        for image in range(IMAGES):
            for head in range(HEADS):
                gram, g = gram_of(layer.k[image, head].numpy())
                centring = np.eye(TOKENS) - 1 / TOKENS
                axes = np.linalg.pinv(centring) @ np.diag(g) @ layer.values[image, head].numpy()
                gammas = gram @ axes / (TOKENS * axes)
                by_axis = [pair_statistics(gammas[:, axis]) for axis in range(WIDTH)]
                for name, values in zip(expected, zip(*by_axis, strict=True), strict=True):
                    rows[name].append(values)
        for name, values in rows.items():
            expected[name].append(np.mean(values, 0))
    for name, by_layer in expected.items():
        profile = found.profiles[f"{name}_by_axis"]
        for one, values in zip(profile.layers, by_layer, strict=True):
            assert np.allclose(one.mean, values), name
        assert np.allclose(profile.mean, np.mean(by_layer, 0))


def pair_statistics(gamma):
    pairs = [(gamma[i], gamma[j]) for i in range(len(gamma)) for j in range(i)]
    apart = [abs(a - b) for a, b in pairs]
    relative = [abs(a - b) / max(abs(a), abs(b)) for a, b in pairs]
    return np.mean(apart), np.std(apart), np.mean(relative), np.std(relative)


def test_eigenvalue_summaries_are_those_of_the_study():
    """Each rank averaged over layers and heads, then summarised image by image, then averaged over images."""
    _, found = results("eigenvalues")
    every = list(layers())
    by_image = []
    for image in range(IMAGES):
        by_rank = [
            fmean(sorted_sizes(layer.k[image, head].numpy())[rank] for layer in every for head in range(HEADS))
            for rank in range(WIDTH)
        ]
        by_image.append((max(by_rank), min(by_rank), fmean(by_rank), median(by_rank)))
    expected = [fmean(values) for values in zip(*by_image, strict=True)]
    names = ("largest", "smallest", "mean", "median")
    assert [found.statistics[name].estimate.value for name in names] == pytest.approx(expected)


def sorted_sizes(k):
    return sorted(np.abs(np.linalg.eigvalsh(gram_of(k)[0])), reverse=True)


def test_no_eigenvalue_of_standardised_keys_exceeds_its_bound():
    _, found = results("eigenvalues")
    bound = TOKENS * math.exp(-(WIDTH - 1) / math.sqrt(WIDTH))
    limits, values = (found.profiles[f"by_rank_standardised{kind}"].mean for kind in ("_bound", ""))
    assert limits == pytest.approx([bound / rank for rank in range(1, WIDTH + 1)])
    assert all(value <= limit for value, limit in zip(values, limits, strict=True))
    assert found.statistics["trace_bound_standardised"].estimate.value == pytest.approx(bound)


@pytest.mark.untyped  # a stand-in for a diagnosis
def test_tables_have_every_layer():
    claim, found = results("gamma")
    judged = Judged(
        title="t", source="s", outcome="supported", why="w", statistics=dict(found.statistics),
        profiles=dict(found.profiles), findings=(),
    )  # fmt: skip

    class Made:
        claims = {"gamma": judged}  # noqa: RUF012

    lines = list(csv.DictReader(io.StringIO(tables.profiles_csv(Made))))
    assert len(lines) == len(claim.profiles) * (LAYERS + 1) * WIDTH
    one = found.profiles["absolute_by_axis"]
    picked = next(
        line for line in lines if (line["profile"], line["layer"], line["number"]) == ("absolute_by_axis", "1", "3")
    )
    assert float(picked["mean"]) == pytest.approx(one.layers[1].mean[2], rel=1e-6)
    lines = list(csv.DictReader(io.StringIO(tables.layers_csv(Made))))
    picked = next(line for line in lines if (line["statistic"], line["layer"]) == ("residual", "0"))
    units = [unit for unit in found.statistics["residual"].units if unit.layer == 0]
    assert float(picked["mean"]) == pytest.approx(fmean(unit.mean for unit in units), rel=1e-6)
    assert float(picked["chance"]) == pytest.approx(fmean(unit.chance for unit in units), rel=1e-6)
