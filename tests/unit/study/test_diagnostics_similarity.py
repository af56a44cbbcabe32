"""Similarities against their definitions, scipy, brute force, and the chance values that were measured elsewhere."""

from itertools import permutations

import numpy as np
import pytest
import torch
from made_layers import randn
from scipy.linalg import subspace_angles

from robustbench_kpca.study.diagnostics import similarity as s
from robustbench_kpca.study.diagnostics.run import chance_levels


def rotation(width, seed=9):
    return torch.linalg.qr(randn(width, width, seed=seed)).Q


X, Y = randn(3, 2, 15, 6, seed=1), randn(3, 2, 15, 6, seed=2)
GRAMS = {"linear": s.linear_gram, "kernel": s.kernel_gram, "debiased": s.debiased_gram}


@pytest.mark.parametrize("gram", GRAMS.values(), ids=GRAMS)
def test_cka_of_a_matrix_with_itself_rotated_scaled_and_moved_is_1(gram):
    moved = 3.0 * X @ rotation(6) + 5.0
    same = s.cosines(gram(X), gram(moved)).diagonal(dim1=0, dim2=1)
    assert torch.allclose(same, torch.ones_like(same))
    assert s.cosines(gram(X), gram(Y)).max() < 0.9


def test_linear_cka_is_kornbliths_and_chance_as_measured_elsewhere():
    x, y = (z - z.mean(-2, keepdim=True) for z in (X, Y))
    for i in range(3):
        for j in range(3):
            for h in range(2):
                a, b = x[i, h], y[j, h]
                expected = (b.T @ a).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
                assert float(s.cosines(s.linear_gram(X), s.linear_gram(Y))[i, j, h]) == pytest.approx(float(expected))
    # Those are means of 5 draws, given to three digits; Gaussian pairs hardly vary, keys do.
    found = {(one.pair, one.statistic): one for one in chance_levels(197, 64, draws=12)}
    for pair, expected in PUBLISHED.items():
        for name, value in zip(("linear_cka", "kernel_cka", "matching_cosine"), expected, strict=True):
            one = found[pair, name]
            assert one.mean == pytest.approx(value, abs=0.002 + 3 * one.deviation), (pair, name)
        assert abs(found[pair, "debiased_cka"].mean) < 0.03


def unbiased_hsic(k, m):
    """Song et al. (2012), equation 5, term by term."""
    n = len(k)
    k, m = k.copy(), m.copy()
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    terms = np.trace(k @ m) + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 * (k @ m).sum() / (n - 2)
    return terms / (n * (n - 3))


def naive_kernel_gram(x):
    squared = ((x[:, None] - x[None]) ** 2).sum(-1)
    k = np.exp(-squared / (2 * np.median(squared[squared > 0])))
    h = np.eye(len(x)) - 1 / len(x)
    return h @ k @ h


def test_kernel_gram_and_matching_by_definition():
    # 15 tokens have 105 pairs, an odd number: the median is one of them, however it is defined.
    assert np.allclose(s.kernel_gram(X)[2, 1].numpy(), naive_kernel_gram(X[2, 1].numpy()), atol=1e-12)
    x, y = randn(1, 1, 6, 3, seed=3), randn(1, 1, 6, 3, seed=4)
    cosine = s.unit_rows(x)[0, 0] @ s.unit_rows(y)[0, 0].T
    best = max(float(cosine[range(6), order].mean()) for order in permutations(range(6)))
    assert float(s.matching_cosine(x, y)[0, 0, 0]) == pytest.approx(best)
    a, b = X[0, 0].numpy(), Y[1, 0].numpy()
    k, m = a @ a.T, b @ b.T
    expected = unbiased_hsic(k, m) / np.sqrt(unbiased_hsic(k, k) * unbiased_hsic(m, m))
    assert float(s.cosines(s.debiased_gram(X), s.debiased_gram(Y))[0, 1, 0]) == pytest.approx(expected, rel=1e-10)


def test_angles_overlap_cosine_and_frobenius_by_definition():
    x, y = X - X.mean(-2, keepdim=True), Y - Y.mean(-2, keepdim=True)
    a, b = s.basis(X), s.basis(Y)
    overlap = s.cosines(a @ a.transpose(-2, -1), b @ b.transpose(-2, -1))
    for i in range(3):
        theirs = np.sort(subspace_angles(x[i, 0].numpy(), y[i, 0].numpy()))
        assert np.allclose(s.principal_angles(a, b)[i, 0].deg2rad().numpy(), theirs)
        assert float(overlap[i, i, 0]) == pytest.approx(float((np.cos(theirs) ** 2).mean()))
    log_scale = randn(3, 2, seed=5)
    for i, j, h in ((0, 0, 0), (1, 2, 1)):
        x, y = X[i, h], Y[j, h]
        cosine = torch.nn.functional.cosine_similarity(x, y).mean()
        assert torch.allclose(s.direct_cosine(X, Y)[i, j, h], cosine)
        scaled = log_scale[j, h].exp() * y
        assert torch.allclose(s.relative_frobenius(X, Y, log_scale)[i, j, h], (x - scaled).norm() / x.norm())


PUBLISHED = {  # N = 197, D = 64: linear CKA, kernel CKA, mean optimal cosine
    "Gaussian and Gaussian": (0.245, 0.355, 0.318),
    "Gaussian and random orthonormal columns": (0.285, 0.401, 0.319),
    "Gaussian and V_theory of Gaussian keys": (0.200, 0.133, 0.188),
}
