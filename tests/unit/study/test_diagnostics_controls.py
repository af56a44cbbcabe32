"""No claim is supported by what its control shows as well: small noise, even rows, plain attention, one image."""

import math

import numpy as np
import pytest
import torch
from made_layers import judge, layer, randn

from robustbench_kpca.attention.rpc import RPCAttention
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims.projection_loss import projection_error
from robustbench_kpca.study.diagnostics.kernel import spectrum
from robustbench_kpca.study.diagnostics.layer import Layer

pytestmark = pytest.mark.usefixtures("fork")

TOKENS, WIDTH, HEADS = 40, 8, 3


def noise(first, images, *, key_std=1.0, value_std=1.0):
    q, k, v = (randn(images, HEADS, TOKENS, WIDTH, seed=3 * first + part) for part in range(3))
    return layer(key_std * q, key_std * k, value_std * v, first)


def planted(first, images, lengths=None):
    q, k = (randn(images, HEADS, TOKENS, WIDTH, seed=2 * first + part) for part in range(2))
    values, log_c = spectrum(k).orthonormal_values(WIDTH)
    values = values * log_c.exp()[..., None, None]
    return layer(q, k, values if lengths is None else values * lengths, first)


@pytest.mark.parametrize("std", [1.0, 1e-1, 1e-3, 1e-6])
def test_small_outputs_are_no_projections(std):
    results, verdict = judge("projection_loss", lambda first, images: noise(first, images, value_std=std))
    assert verdict.outcome == "not supported"
    if std <= 1e-3:
        assert results.statistics["inequality"].estimate.value == 1  # they obey what is necessary
        assert results.statistics["projection_error"].estimate.value == pytest.approx(1, abs=0.05)


def test_projections_are_projections_up_to_noise_of_their_own_size():
    for amount, outcome in ((0.0, "supported"), (0.3, "supported"), (1.0, "not supported")):

        def make(first, images, amount=amount):
            one = planted(first, images)
            spoilt = one.outputs + amount * _alike(one.outputs, seed=first)
            return Layer(0, "", one.module, one.x, one.q, one.k, one.v, 0.9 * spoilt, one.heads, one.ids, 0)

        results, verdict = judge("projection_loss", make)
        assert verdict.outcome == outcome, (amount, verdict.why)
        assert results.statistics["projection_error"].null.p < 0.01


def _alike(x, seed):
    drawn = randn(*x.shape, seed=50 + seed)
    return drawn * x.norm(dim=-1, keepdim=True) / drawn.norm(dim=-1, keepdim=True)


def test_the_projection_error_is_the_distance_under_the_best_rotation():
    one, turn = planted(0, 2), torch.linalg.qr(randn(WIDTH, WIDTH, seed=9)).Q
    turned = Layer(0, "", one.module, one.x, one.q, one.k, one.v, 3 * one.outputs @ turn, one.heads, one.ids, 0)
    own = torch.stack([projection_error(turned)[image, image] for image in range(2)])
    assert torch.allclose(own, torch.full_like(own, 2 / 3))  # |3 P - P| / |3 P|
    noisy = Layer(0, "", one.module, one.x, one.q, one.k, one.v, randn(*one.outputs.shape), one.heads, one.ids, 0)
    from scipy.linalg import orthogonal_procrustes

    p, h = one.outputs[1, 2].numpy(), noisy.outputs[0, 2].numpy()
    rotation, _ = orthogonal_procrustes(p, h)
    expected = np.linalg.norm(h - p @ rotation) / max(np.linalg.norm(h), np.linalg.norm(p))
    assert float(projection_error(noisy)[0, 1, 2]) == pytest.approx(expected)
    nothing = Layer(0, "", one.module, one.x, one.q, one.k, one.v, 0 * one.outputs, one.heads, one.ids, 0)
    assert torch.allclose(projection_error(nothing), torch.ones(2, 2, HEADS, dtype=torch.float64))


@pytest.mark.parametrize("std", [1e-3, 0.1, 0.6, 1.0, 2.0])
def test_attention_of_random_keys_does_not_have_low_rank_beyond_its_controls(std):
    _, verdict = judge("singular_values", lambda first, images: noise(first, images, key_std=std))
    assert verdict.outcome != "supported", verdict.why


def rpc(make_k, make_v, **options):
    module = RPCAttention(HEADS * WIDTH, HEADS, **options)

    def make(first, images):
        k = make_k(images, first)
        return layer(k, k, make_v(images, first), first, module)

    return make


def test_a_low_rank_of_values_is_not_the_pursuits_doing():
    """L of plain attention has the low rank of V as well, so that it says nothing about the pursuit."""

    def thin(images, first):
        return randn(images, HEADS, TOKENS, 1, seed=first + 1) @ randn(images, HEADS, 1, WIDTH, seed=first + 2)

    make = rpc(lambda images, first: randn(images, HEADS, TOKENS, WIDTH, seed=first, std=0.01), thin)
    results, verdict = judge("low_rank", make)
    ratio, plain = (results.statistics[f"rank_ratio{kind}"].estimate.value for kind in ("", "_unpursued"))
    assert ratio <= thresholds.LOW_RANK_PART
    assert ratio == pytest.approx(plain, rel=0.01)
    assert verdict.outcome == "not supported"


def test_a_rank_that_the_pursuit_lowers_is_supported():
    """All of K goes into S, so that M = 0 and L is the mean of the values: rank 1; plain attention passes V on."""

    def keys(images, first):
        return 30 * torch.nn.functional.normalize(randn(images, HEADS, TOKENS, WIDTH, seed=first), dim=-1)

    make = rpc(keys, lambda images, first: randn(images, HEADS, TOKENS, WIDTH, seed=first + 1), iterations=1, lam=1e-9)
    results, verdict = judge("low_rank", make)
    assert results.statistics["rank_ratio"].estimate.value == pytest.approx(1 / 7.8, rel=0.1)
    assert results.statistics["rank_ratio_unpursued"].estimate.value > 0.8
    assert verdict.outcome == "supported"
    assert judge("low_rank", make, images=1, block=1)[1].outcome == "not testable"


@pytest.mark.parametrize(("spikes", "outcome"), [(True, "supported"), (False, "not supported")])
def test_sparse_is_sparser_than_of_random_keys(spikes, outcome):
    """A threshold that nothing but spikes passes, or a share of Gaussian entries that random keys have, too."""

    def keys(images, first):
        k = randn(images, HEADS, TOKENS, WIDTH, seed=first, std=0.1)
        if spikes:
            k[:, :, ::8, 0] = 50.0
        return k

    lam = 0.1 if spikes else 0.53
    make = rpc(keys, keys, iterations=1, threshold="lam/mu", mu_width="head", lam=lam)
    results, verdict = judge("sparsity", make)
    assert 0 < results.statistics["density"].estimate.value < thresholds.SPARSE
    assert verdict.outcome == outcome, verdict.why


def test_splits_and_rows_that_tell_nothing():
    def equal(images, first):
        return randn(images, HEADS, 1, WIDTH, seed=first).expand(-1, -1, TOKENS, -1).clone()

    results, verdict = judge("decomposition", rpc(equal, equal, lam=math.inf, iterations=1))
    assert results.statistics["residual"].estimate.value < 1e-12
    assert verdict.outcome == "not supported"
    results, verdict = judge("singular_values", lambda first, images: noise(first, images, key_std=1e-3))
    assert results.statistics["energy"].estimate.value > thresholds.LOW_RANK_ENERGY
    assert results.statistics["energy_shuffled"].estimate.value > thresholds.LOW_RANK_ENERGY
    assert verdict.outcome == "not testable"


@pytest.mark.parametrize(("shift", "outcome"), [(0.0, "supported"), (0.05, "supported"), (0.5, "not supported")])
def test_a_split_of_its_own_is_supported_up_to_its_limit(shift, outcome):
    """All of K goes into S and L is the mean of V: the residual is that mean over |K|."""

    def values(images, first):
        v = randn(images, HEADS, TOKENS, WIDTH, seed=first + 1)
        return v - v.mean(-2, keepdim=True) + shift

    make = rpc(lambda images, first: randn(images, HEADS, TOKENS, WIDTH, seed=first), values, iterations=1, lam=1e-9)
    results, verdict = judge("decomposition", make)
    assert results.statistics["residual"].estimate.value == pytest.approx(shift, abs=0.05 * shift + 1e-6)
    assert verdict.outcome == outcome


@pytest.mark.parametrize(("angle", "outcome"), [(0.0, "supported"), (0.1, "supported"), (1.0, "not supported")])
def test_gamma_sees_axes_that_are_nearly_eigenvectors(angle, outcome):
    """V = G (A + angle noise): what comes out of (I - 1_N)^+ G^-1 V are axes turned by about that angle."""

    def make(first, images):
        k = randn(images, HEADS, TOKENS, WIDTH, seed=first)
        found = spectrum(k)
        axes = found.leading_axes(WIDTH)
        axes = axes + angle * randn(*axes.shape, seed=first + 1) / TOKENS**0.5
        return layer(k, k, (-found.log_g).exp().unsqueeze(-1) * axes, first)

    assert judge("gamma", make)[1].outcome == outcome


def test_axes_of_any_length_are_kernel_pca():
    """Theorem 1 leaves the lengths open: V = G A diag(c), c log-normal, is neither of the two that linear CKA knows."""
    lengths = randn(WIDTH, seed=99, std=1.5).exp()
    results, verdict = judge("value_vectors", lambda first, images: planted(first, images, lengths))
    assert results.statistics["linear_cka"].estimate.value < thresholds.ALIGNED
    assert results.statistics["linear_cka_orthonormal"].estimate.value < thresholds.ALIGNED
    assert results.statistics["subspace_overlap"].estimate.value == pytest.approx(1)
    assert verdict.outcome == "supported"
    assert judge("value_vectors", noise)[1].outcome == "not supported"
