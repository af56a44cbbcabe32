"""Claims about Primal attention, on a kernel SVD made by hand and on attention matrices of known rank."""

import math

import pytest
import torch
from made_layers import judge, layer, randn

from robustbench_kpca import create_model, load_data
from robustbench_kpca.attention.identity import IdentityAttention
from robustbench_kpca.attention.kep_svgp import KEPSVGPAttention
from robustbench_kpca.attention.primal import PrimalAttention, ksvd_objective
from robustbench_kpca.study.diagnostics import CLAIMS
from robustbench_kpca.study.diagnostics.claims.primal_objective import feature_maps, stationarity, untrained
from robustbench_kpca.study.diagnostics.claims.singular_values import energy, singular_values
from robustbench_kpca.study.diagnostics.taps import call, find_taps, listening

pytestmark = pytest.mark.usefixtures("fork")

TOKENS, WIDTH, HEADS = 20, 8, 2


def kernel_svd(rank=3):
    """W_e = B^T V, W_r = A^T U, Lambda = S^(-1/2), with the SVD A B^T / N = U S V^T."""
    a, b = randn(1, HEADS, TOKENS, WIDTH, seed=1), randn(1, HEADS, TOKENS, WIDTH, seed=2)
    u, s, vh = torch.linalg.svd(a[0] @ b[0].transpose(-2, -1) / TOKENS, full_matrices=False)
    w_e = b[0].transpose(-2, -1) @ vh[..., :rank, :].transpose(-2, -1)
    w_r = a[0].transpose(-2, -1) @ u[..., :rank]
    return a, b, w_e, w_r, s[..., :rank].rsqrt()


def test_scores_objective_and_gradient_at_a_kernel_svd():
    objective, relative, gradient = stationarity(*kernel_svd())
    assert float(objective.abs().max()) < 1e-10
    assert float(relative.max()) < 1e-12
    assert float(gradient.max()) < 1e-12
    module = PrimalAttention(WIDTH * HEADS, HEADS, tokens=TOKENS, rank=3, rank_multi=4).double().eval()
    x = randn(2, TOKENS, WIDTH * HEADS)
    q, k = (part.detach() for part in module.scores.qk(x).view(2, TOKENS, 2, HEADS, WIDTH).permute(2, 0, 3, 1, 4))
    a, b = feature_maps(layer(q, k, module=module, x=x), module.scores)
    e, r = module.scores(x)
    assert torch.allclose(a @ module.scores.w_e, e)
    assert torch.allclose(b @ module.scores.w_r, r)


def test_objective_and_gradient_are_those_of_the_layer():
    a, b, w_e, w_r, lam = kernel_svd()
    w_e, w_r = (w + randn(*w.shape, seed=5) for w in (w_e, w_r))
    w_e.requires_grad_()
    w_r.requires_grad_()
    whole = ksvd_objective(a @ w_e, b @ w_r, w_e, w_r, lam)
    objective, _, gradient = stationarity(a, b, w_e, w_r, lam)
    assert torch.allclose(objective.mean(1), whole)
    slopes = torch.autograd.grad(HEADS * whole.sum(), (w_e, w_r))  # the layer's J is a mean over heads
    parts = [
        (slope + other).square().sum((-2, -1)).sqrt() + other.square().sum((-2, -1)).sqrt()
        for slope, other in zip(slopes, (w_r, w_e), strict=True)
    ]
    sizes = sum(slope.square().sum((-2, -1)) for slope in slopes) / sum(part.square() for part in parts)
    assert torch.allclose(gradient[0], sizes.sqrt())


def test_a_layer_with_random_weights_is_no_kernel_svd():
    model = create_model("primal_vit_digits")
    images, _ = load_data("digits").tensors()
    taps = find_taps(model)
    with listening(taps) as readings:
        call(model, images[:5])
        tap, reading = taps[-1], readings()[-1]
    assert isinstance(tap.module, PrimalAttention)
    assert reading.q is not None
    one = layer(reading.q.double(), reading.k.double(), module=tap.module, x=reading.x)
    assert CLAIMS.get("primal_objective").applies(one)
    results, verdict = judge("primal_objective", one)
    assert verdict.outcome == "not supported"
    value = {name: found.estimate.value for name, found in results.statistics.items()}
    assert value["gradient"] > 0.3
    assert value["gradient"] == pytest.approx(value["gradient_untrained"], abs=0.1)  # it is as before training


def test_the_layer_set_to_its_kernel_svd_is_supported():
    module = PrimalAttention(WIDTH * HEADS, HEADS, tokens=TOKENS, rank=3, rank_multi=9).double().eval()
    x = randn(1, TOKENS, WIDTH * HEADS)
    q, k = (part.detach() for part in module.scores.qk(x).view(1, TOKENS, 2, HEADS, WIDTH).permute(2, 0, 3, 1, 4))
    one = layer(q, k, module=module, x=x)
    a, b = feature_maps(one, module.scores)
    u, s, vh = torch.linalg.svd(a[0] @ b[0].transpose(-2, -1) / TOKENS, full_matrices=False)
    with torch.no_grad():
        module.scores.w_e.copy_(b[0].transpose(-2, -1) @ vh[..., :3, :].transpose(-2, -1))
        module.scores.w_r.copy_(a[0].transpose(-2, -1) @ u[..., :3])
        module.lam.copy_(s[..., :3].rsqrt())
    assert judge("primal_objective", one)[1].outcome == "supported"


def test_singular_values_and_energy_by_hand():
    x = randn(2, 3, 7, 7)
    assert torch.allclose(singular_values(x), torch.linalg.svdvals(x), rtol=1e-6)
    eye = torch.eye(4, dtype=torch.float64).expand(1, 1, 4, 4)
    assert torch.equal(singular_values(eye), torch.ones(1, 1, 4, dtype=torch.float64))
    sizes = torch.tensor([[[3.0, 2.0, 1.0, 0.0]]])
    assert float(energy(sizes, 0.25)) == pytest.approx(9 / 14)
    assert float(energy(sizes, 0.3)) == pytest.approx(13 / 14)  # rounded up
    assert float(energy(sizes, 1.0)) == pytest.approx(1)
    x = randn(1, 1, 3, 4)
    assert not CLAIMS.get("singular_values").applies(layer(x, x, x, module=IdentityAttention(4, 1)))
    assert not CLAIMS.get("singular_values").applies(layer(x, x))


def test_attention_to_one_of_two_places_has_low_rank_and_the_identity_has_not():
    places = torch.zeros(3, HEADS, 40, 4, dtype=torch.float64)
    places[..., :20, 0] = places[..., 20:, 1] = 12.0  # tokens look at their own half
    results, verdict = judge("singular_values", layer(places, places, places))
    assert verdict.outcome == "supported"
    assert results.statistics["rank"].estimate.value == pytest.approx(2 / 40, rel=1e-3)
    apart = 30 * torch.eye(40, dtype=torch.float64).expand(3, HEADS, 40, 40)
    results, verdict = judge("singular_values", layer(apart, apart, apart))
    assert verdict.outcome == "not supported"
    assert results.statistics["energy"].estimate.value == pytest.approx(0.1, abs=1e-3)
    assert results.statistics["rank"].estimate.value == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("kind", "least"), [(PrimalAttention, 0.0), (KEPSVGPAttention, 1.0)])
def test_the_untrained_control_is_drawn_as_the_layer_is(kind, least):
    """Lambda is uniform in [0, 1), or the exponential of that, from 1 to e."""
    module = kind(HEADS * WIDTH, HEADS, tokens=TOKENS, rank=4)
    x = randn(1, HEADS, TOKENS, WIDTH)
    w_e, w_r, lam = untrained(layer(x, x, module=module), randn(HEADS, 200, 300))
    assert [float(w.square().sum((-2, -1)).sqrt().mean()) for w in (w_e, w_r)] == pytest.approx([1, 1])
    most = math.e if least else 1.0
    assert least <= float(lam.min()) < least + 0.02
    assert most - 0.02 < float(lam.max()) <= most
