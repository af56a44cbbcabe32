"""Kernel PCA of keys against its own definition, scikit-learn, extended precision and theorems."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_layers import randn
from sklearn.decomposition import KernelPCA

from robustbench_kpca.attention.shared.heads import standardised
from robustbench_kpca.study.diagnostics.kernel import log_kernel, sharp_bound, spectrum, trace_bound


def by_definition(k):
    """Equation 11 as printed, with 1_N the matrix of 1 / N."""
    k = k.numpy()
    kappa = np.exp(k @ k.T / np.sqrt(k.shape[1]))
    g = kappa.sum(1)
    gram = kappa / np.outer(g, g)
    ones = np.full_like(gram, 1 / len(gram))
    return g, gram, gram - ones @ gram - gram @ ones + ones @ gram @ ones


def test_gram_eigenvalues_and_values_are_those_of_theorem_1():
    k = randn(20, 8)
    g, _, centred = by_definition(k)
    found = spectrum(k)
    assert torch.allclose(found.log_g.exp(), torch.from_numpy(g))
    assert torch.allclose(found.gram * found.log_scale.exp(), torch.from_numpy(centred), atol=1e-14)
    expected = np.sort(np.abs(np.linalg.eigvals(centred)))[::-1].copy()
    assert torch.allclose(found.eigenvalues(20), torch.from_numpy(expected), atol=1e-14)
    k = randn(20, 8)
    g, _, centred = by_definition(k)
    values, axes = np.linalg.eigh(centred)
    axes = axes[:, np.argsort(-np.abs(values))][:, :8]
    expected = (axes - axes.mean(0)) / g[:, None]
    found, log_c = spectrum(k).theoretical_values(8)
    found = (found * log_c.exp()).numpy()
    signs = np.sign((found * expected).sum(0))
    assert np.allclose(found, expected * signs, atol=1e-12)


def test_axes_solve_the_eigenproblem_and_are_scikit_learns():
    found = spectrum(randn(2, 3, 30, 8))
    axes = found.leading_axes(8)
    image = found.gram @ axes
    assert torch.allclose(image, axes * found.values[..., None, :8], atol=1e-12)
    assert axes.mean(-2).abs().max() < 1e-12
    assert torch.allclose(axes.transpose(-2, -1) @ axes, torch.eye(8, dtype=torch.float64).expand(2, 3, 8, 8))
    k = randn(25, 6)
    _, gram, _ = by_definition(k)
    theirs = KernelPCA(5, kernel="precomputed").fit(gram)
    ours = spectrum(k)
    assert np.allclose(ours.eigenvalues(5).numpy(), theirs.eigenvalues_, rtol=1e-8)
    agreement = np.abs((ours.leading_axes(5).numpy() * theirs.eigenvectors_).sum(0))
    assert np.allclose(agreement, 1, atol=1e-8)


def test_orthonormal_values_are_coordinates_of_a_projection():
    """u_d = sum_j a_dj phi~(k_j) has u_c . u_d = a_c . K a_d; V times softmax weights is then <phi(q), u_d>."""
    k, q = randn(20, 8), randn(8, seed=1)
    g, _, centred = by_definition(k)
    values, log_c = spectrum(k).orthonormal_values(8)
    values = (values * log_c.exp()).numpy()
    axes = values * g[:, None]  # up to a constant per axis, which centred features do not see
    assert np.allclose(axes.T @ centred @ axes, np.eye(8), atol=1e-9)
    kappa = np.exp(k.numpy() @ q.numpy() / np.sqrt(8))
    cross = kappa / (kappa.sum() * g)  # <phi(q), phi(k_j)>
    projected = (cross - cross.mean()) @ axes
    assert np.allclose(kappa / kappa.sum() @ values, projected, atol=1e-9)


@pytest.mark.parametrize("std", [10.0, 20.0])
def test_logits_far_above_88_do_not_overflow(std):
    k = randn(12, 16, std=std)
    assert log_kernel(k, k).max() > 709  # exp overflows even in double precision
    found = spectrum(k)
    wide = k.numpy().astype(np.longdouble)
    kappa = np.exp(wide @ wide.T / np.longdouble(4))
    assert np.isfinite(kappa).all()  # extended precision reaches e^11356
    g = kappa.sum(1)
    assert np.allclose(found.log_g.numpy(), np.log(g).astype(float), rtol=1e-12)
    gram = kappa / np.outer(g, g)
    scaled = (gram / gram.max()).astype(float)
    assert float(np.log(gram.max())) == pytest.approx(float(found.log_scale), rel=1e-12)
    centring = np.eye(12) - 1 / 12
    assert np.allclose(found.gram.numpy(), centring @ scaled @ centring, atol=1e-12)
    assert all(torch.isfinite(part).all() for part in found.theoretical_values(16))


def test_few_tokens_and_the_published_bound():
    found = spectrum(randn(5, 16))
    assert float(found.rank) == 4  # centring takes one
    values, _ = found.theoretical_values(16)
    assert values.shape == (5, 16)
    assert values[:, :4].norm(dim=0).min() > 0.01
    assert values[:, 4:].abs().max() == 0
    assert found.eigenvalues(16)[5:].tolist() == [0.0] * 11
    assert trace_bound(197, 64) == pytest.approx(0.0749, abs=5e-5)
    assert trace_bound(197, 32) == pytest.approx(0.821, abs=5e-4)
    largest = [float(spectrum(standardised(randn(197, width))).eigenvalues(1)) for width in (64, 32)]
    assert largest[0] == pytest.approx(3e-4, rel=0.2)
    assert largest[1] == pytest.approx(1e-3, rel=0.3)
    assert 8000 * trace_bound(197, 64) < 648.46


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(2, 20), st.floats(0.01, 5))
def test_no_eigenvalue_exceeds_the_sharp_bound_or_reaches_1(seed, tokens, width, std):
    found = spectrum(randn(tokens, width, seed=seed, std=std))
    bound = float(sharp_bound(found.log_g))
    assert float(found.eigenvalues(1)) <= bound * (1 + 1e-12)
    assert bound < 1
