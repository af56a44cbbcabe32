"""Claims on layers of which the truth is known: planted kernel PCA is supported, noise is not, and nulls are nulls."""

import math

import numpy as np
import pytest
import torch
from made_layers import judge, layer, randn
from scipy import stats

from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.study.diagnostics import CLAIMS, thresholds
from robustbench_kpca.study.diagnostics.claims import Claim
from robustbench_kpca.study.diagnostics.claims.eigenvalues import REPORTED, summarise
from robustbench_kpca.study.diagnostics.claims.gamma import residual
from robustbench_kpca.study.diagnostics.claims.projection_loss import official_log_error
from robustbench_kpca.study.diagnostics.diagnosis import Profile, finding
from robustbench_kpca.study.diagnostics.kernel import spectrum
from robustbench_kpca.study.diagnostics.totals import Moments, RatioMoments, Totals, block_orders

TOKENS, WIDTH, HEADS = 30, 8, 4
FOUR = ("eigenvalues", "gamma", "projection_loss", "value_vectors")


def kernel_pca_values(k):
    """V_theory with axes of unit length in feature space, a . K a = 1: then outputs are coordinates."""
    values, log_c = spectrum(k).orthonormal_values(k.shape[-1])
    return values * log_c.exp()[..., None, None]


def planted(first, images):
    q, k = (randn(images, HEADS, TOKENS, WIDTH, seed=2 * first + part) for part in range(2))
    return layer(q, k, kernel_pca_values(k), first)


def random(first, images):
    q, k, v = (randn(images, HEADS, TOKENS, WIDTH, seed=3 * first + part) for part in range(3))
    return layer(q, k, v, first)


@pytest.mark.parametrize("name", CLAIMS.names())
def test_every_claim_says_what_it_is_and_observes_what_it_lists(name):
    claim = CLAIMS.get(name)
    assert isinstance(claim, Claim)
    assert "arXiv:" in claim.source
    one = random(0, 3)
    if not claim.applies(one):
        return  # it is about another attention, and its own tests show it such a layer
    found = claim.observe(one)
    observed = {key: one for key, one in claim.statistics.items() if not one.log10_of}
    assert set(found) == set(observed) | set(claim.profiles)
    for key, statistic in observed.items():
        assert found[key].shape == ((3, 3, HEADS) if statistic.null else (3, HEADS)), key
        assert torch.isfinite(found[key]).all(), key
        assert not statistic.null or statistic.better != "neither"


@pytest.mark.parametrize("name", ["gamma", "projection_loss", "value_vectors"])
def test_planted_kernel_pca_is_supported_and_noise_is_not(name):
    assert judge(name, planted, 20)[1].outcome == "supported"
    assert judge(name, random, 20)[1].outcome == "not supported"


def test_planted_kernel_pca_is_told_apart_with_its_exact_numbers():
    results, _ = judge("value_vectors", lambda first, images: _turned(planted(first, images)), 20)
    found = {name: one.estimate.value for name, one in results.statistics.items()}
    for name in ("linear_cka", "kernel_cka", "debiased_cka", "subspace_overlap"):
        assert found[name] == pytest.approx(1, abs=1e-9), name  # whatever the rotation of the axes
    assert found["matching_cosine"] < 0.9  # which the cosines are not blind to
    assert found["median_angle"] == pytest.approx(0, abs=1e-4)
    units = results.statistics["linear_cka"].units
    assert all(unit.p_holm <= thresholds.SIGNIFICANCE < 1 for unit in units)
    results, _ = judge("value_vectors", planted, 20)
    assert results.statistics["linear_cka_orthonormal"].estimate.value == pytest.approx(1, abs=1e-9)
    assert results.statistics["linear_cka"].estimate.value < 0.999
    results, _ = judge("gamma", planted, 20)
    assert results.statistics["residual"].estimate.value < 1e-8
    assert results.statistics["relative"].estimate.value < 1e-6
    assert results.statistics["residual_random"].estimate.value > 0.5
    results, _ = judge("projection_loss", planted, 20)
    assert results.statistics["inequality"].estimate.value == 1
    assert results.statistics["scaled_signed"].estimate.low >= 0


def _turned(one):
    """V_theory itself (axes of length 1), its columns rotated."""
    values, _ = one.spectrum.theoretical_values(WIDTH)
    return layer(one.q, one.k, values @ torch.linalg.qr(randn(WIDTH, WIDTH, seed=5)).Q, int(one.ids[0]))


def test_the_null_holds_its_level_where_values_and_keys_share_positions():
    """All images share keys up to noise, and values up to noise: nothing ties an image's values to its own keys."""
    heads, images = 60, 10
    common_k = randn(1, heads, TOKENS, WIDTH, seed=100)
    common_v = 30 * kernel_pca_values(common_k)

    def make(first, count):
        k = common_k + 0.3 * randn(count, heads, TOKENS, WIDTH, seed=200 + first)
        v = common_v + randn(count, heads, TOKENS, WIDTH, seed=300 + first)
        return layer(k, k, v, first)

    results, _ = judge("value_vectors", make, images=images)
    unrelated, _ = judge("value_vectors", random, images=images)
    measured = results.statistics["linear_cka"]
    assert measured.estimate.value > 1.3 * unrelated.statistics["linear_cka"].estimate.value
    assert measured.null.chance == pytest.approx(measured.estimate.value, rel=0.05)  # chance knows what is shared
    assert stats.kstest([unit.p for unit in measured.units], "uniform").pvalue > 0.01


def test_log_space_terms_are_those_of_the_formula():
    one = random(0, 2)
    found = CLAIMS.get("projection_loss").observe(one)
    kappa = (one.q @ one.k.transpose(-2, -1) / math.sqrt(WIDTH)).exp()
    phi = (one.q.square().sum(-1) / math.sqrt(WIDTH)).exp() / kappa.sum(-1) ** 2
    h = one.outputs.square().sum(-1)
    error = phi - h
    expected = {
        "phi": phi.mean(-1), "h": h.mean(-1), "inequality": (h <= phi).double().mean(-1),
        "log10_ratio_geometric": (h.mean(-1) / phi.mean(-1)).log10(),
        "scaled_signed": error.mean(-1), "scaled_absolute": error.abs().mean(-1),
        "error_over_h": (error.abs() / h).mean(-1), "error_over_phi": (error.abs() / phi).mean(-1),
        "relative_to_phi_geometric": (error.abs() / phi).mean(-1).log10(),
    }  # fmt: skip
    for name, values in expected.items():
        assert torch.allclose(found[name], values), name


def test_the_official_estimator_and_the_residual():
    q, k, v = (randn(1, 2, 12, 8, seed=part) for part in range(3))
    zq, zk = ((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True) for x in (q, k))
    a = (zq @ zk.transpose(-2, -1) / math.sqrt(8)).softmax(-1)
    num = (zq * zq).sum(-1).exp()
    den = (2 * (zq @ zk.transpose(-2, -1))[..., 0] - (a[..., 0] ** 2).log()).exp()
    error = num / den - (a @ v).square().sum(-1)
    assert torch.allclose(official_log_error(q, k, v), error.mean(-1).abs().log())
    gram = torch.diag(torch.tensor([5.0, 1.0], dtype=torch.float64)).view(1, 1, 2, 2)
    angle = math.atan2(1 * math.sin(0.3), 5 * math.cos(0.3)) - 0.3
    axis = torch.tensor([[math.cos(0.3)], [math.sin(0.3)]], dtype=torch.float64).view(1, 1, 2, 1)
    assert float(residual(gram, axis)) == pytest.approx(abs(math.sin(angle)))
    for name in ("value_vectors", "gamma"):
        assert judge(name, planted, images=2)[1].outcome == "not testable"
        assert judge(name, planted, images=1)[1].outcome == "not testable"


@pytest.mark.parametrize(("tokens", "std"), [(10, 40.0), (1, 1.0), (2, 1.0), (5, 1.0)])
def test_huge_keys_and_fewer_tokens_than_width_stay_finite(tokens, std):
    q, k, v = (randn(3, 2, tokens, 16, seed=part, std=std) for part in range(3))
    for name in FOUR:
        for key, values in CLAIMS.get(name).observe(layer(q, k, v)).items():
            assert torch.isfinite(values).all(), (name, key)


def test_reported_eigenvalues_would_be_found():
    """A list with those very summaries passes, one without does not."""
    claim = CLAIMS.get("eigenvalues")
    results, verdict = judge("eigenvalues", random, 20)
    assert verdict.outcome == "not supported"
    ranks = (648.46, *[17.73] * 60, 4.65)
    assert summarise(ranks)["median"] == REPORTED["median"]
    profile = Profile(what="", mean=ranks, layers=())
    told = type(results)(results.statistics, {"by_rank": profile, "by_rank_standardised": profile})
    assert claim.verdict(told).outcome == "supported"
    assert results.statistics["share_of_bound"].estimate.high <= 1


def test_moments_in_parts_and_exact_p_values():
    rows = np.random.default_rng(0).normal(3, 2, (17, 5))
    moments = Moments()
    for part in np.array_split(rows, 6):
        moments.add(part)
    assert np.allclose(moments.mean, rows.mean(0))
    assert np.allclose(moments.deviation, rows.std(0, ddof=1))
    scalar = Moments()
    scalar.add(rows[:, 0])
    low, high = stats.t.interval(0.95, 16, rows[:, 0].mean(), stats.sem(rows[:, 0]))
    assert (scalar.estimate().low, scalar.estimate().high) == pytest.approx((low, high))
    # With 4 images whose own theory fits best, 1 of 24 orders is as extreme as what was observed.
    claim = CLAIMS.get("value_vectors")
    totals = Totals(claim, [(0, 0)], 20_000)
    one = layer(
        *[randn(4, 1, TOKENS, WIDTH, seed=part) for part in range(2)],
        kernel_pca_values(randn(4, 1, TOKENS, WIDTH, seed=1)),
    )
    totals.add([claim.observe(one)], block_orders(0, "0", 20_000, 4))
    null = totals.results().statistics["linear_cka"].null
    assert null.p == pytest.approx(1 / 24, rel=0.15)
    assert null.least_p == pytest.approx(1 / 24)


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


@pytest.mark.parametrize(
    ("low", "high", "least", "most", "outcome"),
    [
        (0.1, 0.2, None, 0.3, "confirmed"), (0.2, 0.4, None, 0.3, "undecided"), (0.4, 0.5, None, 0.3, "contradicted"),
        (2.6, 3.4, 2.5, 3.5, "confirmed"), (1.9, 2.1, 2.5, 3.5, "contradicted"), (2.4, 2.6, 2.5, None, "undecided"),
    ],
)  # fmt: skip
def test_findings(low, high, least, most, outcome):
    measured = Estimate((low + high) / 2, low, high, 10, "student")
    assert finding("", "", "", measured, least=least, most=most).outcome == outcome
