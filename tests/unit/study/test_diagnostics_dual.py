"""Primal attention beside its dual and beside canonical attention, on kernel matrices of which the SVD is known."""

import numpy as np
import pytest
import torch
from made_layers import judge, randn

from robustbench_kpca.attention.primal import PrimalAttention
from robustbench_kpca.study.diagnostics import CLAIMS
from robustbench_kpca.study.diagnostics.claims.primal_dual import duality
from robustbench_kpca.study.diagnostics.claims.primal_objective import feature_maps, stationarity
from robustbench_kpca.study.diagnostics.layer import Layer

pytestmark = pytest.mark.usefixtures("fork")
TOKENS, WIDTH, HEADS, RANK = 20, 8, 2, 3


def shifted_eigenvalue_problem(a, b):
    """(0 K; K^T 0) (H_e; H_r) = (H_e; H_r) S with K = A B^T / N: its largest eigenvalues are singular values."""
    kernel = a @ b.T / len(a)
    zero = np.zeros_like(kernel)
    values, vectors = np.linalg.eigh(np.block([[zero, kernel], [kernel.T, zero]]))
    values, vectors = values[::-1][:RANK], vectors[:, ::-1][:, :RANK] * np.sqrt(2)
    return values, vectors[: len(a)], vectors[len(a) :]


def objectives(a, b, w_e, w_r, lam):
    n, e, r = len(a), a @ w_e, b @ w_r
    spread = sum((lam[s] * x[i, s]) ** 2 for x in (e, r) for i in range(n) for s in range(len(lam))) / (2 * n)
    primal = spread - np.trace(w_e.T @ w_r)
    h_e, h_r = e * lam**2 / n, r * lam**2 / n
    kernel = a @ b.T
    cross = sum(h_e[i, s] * kernel[i, j] * h_r[j, s] for i in range(n) for j in range(n) for s in range(len(lam)))
    dual = cross - n / 2 * (((h_e / lam) ** 2).sum() + ((h_r / lam) ** 2).sum())
    return primal, dual


def test_objectives_have_no_gap_at_the_dual_solution_only():
    a, b = randn(TOKENS, WIDTH, seed=1), randn(TOKENS, WIDTH, seed=2)
    sizes, h_e, h_r = shifted_eigenvalue_problem(a.numpy(), b.numpy())
    w_e, w_r, lam = b.numpy().T @ h_r, a.numpy().T @ h_e, sizes**-0.5
    assert objectives(a.numpy(), b.numpy(), w_e, w_r, lam) == pytest.approx((0, 0), abs=1e-10)
    found = duality(a[None, None], b[None, None], *(torch.from_numpy(x.copy())[None] for x in (w_e, w_r, lam)))
    assert float(found.gap) < 1e-12
    assert float(found.residual) < 1e-12
    a, b = randn(1, 1, TOKENS, WIDTH, seed=1), randn(1, 1, TOKENS, WIDTH, seed=2)
    w_e, w_r, lam = randn(1, WIDTH, RANK, seed=3), randn(1, WIDTH, RANK, seed=4), randn(1, RANK, seed=5).abs() + 0.5
    found = duality(a, b, w_e, w_r, lam)
    primal, dual = objectives(*(x.numpy() for x in (a[0, 0], b[0, 0], w_e[0], w_r[0], lam[0])))
    assert (float(found.primal), float(found.dual)) == pytest.approx((primal, dual))
    assert float(found.primal) == pytest.approx(float(stationarity(a, b, w_e, w_r, lam)[0]))
    assert float(found.gap) > 0.05
    assert float(found.residual) > 0.05


def primal_layer(seed=0, images=4):
    module = PrimalAttention(WIDTH * HEADS, HEADS, tokens=TOKENS, rank=RANK, rank_multi=9).double().eval()
    x = randn(images, TOKENS, WIDTH * HEADS, seed=seed)
    q, k = (part.detach() for part in module.scores.qk(x).view(images, TOKENS, 2, HEADS, WIDTH).permute(2, 0, 3, 1, 4))
    ids = tuple(str(image) for image in range(images))
    return Layer(0, "made", module, x, q, k, None, None, tuple(range(HEADS)), ids, 0)


def test_a_layer_with_random_weights_does_not_solve_the_dual():
    results, verdict = judge("primal_dual", primal_layer())
    assert verdict.outcome == "not supported"
    value = {name: one.estimate.value for name, one in results.statistics.items()}
    assert value["gap"] > 0.1
    assert value["gap_textbook"] < 1e-12
    assert value["residual_textbook"] < 1e-12
    assert min(value[f"{name}_untrained"] for name in ("gap", "residual", "lambda_error")) > 0.1


def test_a_layer_set_to_the_dual_solution_is_supported():
    one = primal_layer(images=1)
    a, b = feature_maps(one, one.module.scores)
    parts = [shifted_eigenvalue_problem(a[0, head].numpy(), b[0, head].numpy()) for head in range(HEADS)]
    with torch.no_grad():
        for head, (sizes, h_e, h_r) in enumerate(parts):
            one.module.scores.w_e[head] = b[0, head].T @ torch.from_numpy(h_r.copy())
            one.module.scores.w_r[head] = a[0, head].T @ torch.from_numpy(h_e.copy())
            one.module.lam[head] = torch.from_numpy(sizes.copy()).rsqrt()
    results, verdict = judge("primal_dual", one)
    assert verdict.outcome == "supported"
    value = {name: found.estimate.value for name, found in results.statistics.items()}
    assert value["gap"] < 1e-10
    assert value["overlap_e"] == pytest.approx(1)
    assert value["overlap_r"] == pytest.approx(1)
    assert value["lambda_error"] == pytest.approx(0, abs=1e-9)
    expected = np.mean([sizes for sizes, _, _ in parts], 0)
    for name in ("singular_values", "singular_values_lambda", "singular_values_e", "singular_values_r"):
        assert np.allclose(results.profiles[name].mean, expected), name


def test_the_spectrum_of_the_kernel_matrix_by_numpy():
    one = primal_layer()
    found = CLAIMS.get("primal_spectrum").observe(one)
    x, scores = one.x[1].numpy(), one.module.scores
    unit = lambda u: u / np.linalg.norm(u, axis=-1, keepdims=True)  # noqa: E731
    data = x[:, WIDTH : 2 * WIDTH]  # head 1
    q, k = one.q[1, 1].numpy(), one.k[1, 1].numpy()
    landmarks = scores.landmarks.numpy()
    a, b = unit(q) @ data[landmarks].T, unit(k) @ data[landmarks].T
    logits = np.exp(q @ k.T / np.sqrt(WIDTH))
    w_e, w_r = (w.detach().numpy()[1] for w in (scores.w_e, scores.w_r))
    represented = (a @ w_e) @ np.diag(one.module.lam.detach().numpy()[1] ** 2) @ (b @ w_r).T
    kinds = {"": a @ b.T, "_canonical": logits / logits.sum(1, keepdims=True), "_scores": represented}
    for kind, matrix in kinds.items():
        squares = np.linalg.svd(matrix, compute_uv=False) ** 2
        assert float(found[f"energy{kind}"][1, 1]) == pytest.approx(squares[:2].sum() / squares.sum())
        assert float(found[f"energy_by_share{kind}"][1, 1, 4]) == pytest.approx(squares[:5].sum() / squares.sum())
    assert np.linalg.matrix_rank(represented) == RANK
    assert float(found["energy_gained"][1, 1]) == pytest.approx(
        float((found["energy"] - found["energy_canonical"])[1, 1])
    )
