"""The study's kernel PCA and similarities of one head, on plain (tokens, width) matrices."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from robustbench_kpca.study.diagnostics.claims import Statistic, Verdict
from robustbench_kpca.study.diagnostics.diagnosis import Finding
from robustbench_kpca.study.diagnostics.layer import Layer

SOURCE = "Sarıtaş & Yıldız (2025), arXiv:2505.07908"
SMALL = 1e-6
Matrix = Float[Tensor, "tokens width"]
Square = Float[Tensor, "tokens tokens"]


def centred_gram(k: Matrix) -> tuple[Square, Float[Tensor, " tokens"]]:
    """Return the centred Gram matrix and g: kappa_ij / (g_i g_j + 1e-6), minus row and column means, plus the mean."""
    kappa = (k @ k.T / k.shape[-1] ** 0.5).exp()
    g = kappa.sum(-1)
    normal = kappa / (torch.outer(g, g) + SMALL)
    ones = torch.full_like(normal, 1 / len(k))
    return normal - ones @ normal - normal @ ones + ones @ normal @ ones, g


def standardised(x: Matrix) -> Matrix:
    """Return (x - mean) / (std + 1e-8) of every token over its entries, with the unbiased std."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-8)


def axes_by_size(gram: Square, count: int) -> Matrix:
    """Return the eigenvectors of the `count` eigenvalues largest in absolute value."""
    values, vectors = torch.linalg.eigh(gram)
    order = values.abs().argsort(descending=True)
    chosen: Tensor = vectors[:, order[:count]]
    return chosen


def theoretical_values(axes: Matrix, weights: Float[Tensor, " tokens"]) -> Matrix:
    """Return G A - G 1_N A with G = diag(weights)."""
    ones = torch.full((len(axes), len(axes)), 1 / len(axes), dtype=axes.dtype, device=axes.device)
    g = torch.diag(weights)
    return g @ axes - g @ ones @ axes


def head_by_head(layer: Layer, measure: Callable[[int, int], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Call `measure(image, head)` for all; return what it gives, stacked to (images, heads, ...)."""
    images, heads = layer.k.shape[:2]
    measured = [[measure(image, head) for head in range(heads)] for image in range(images)]
    return {
        name: torch.stack([torch.stack([by_name[name] for by_name in row]) for row in measured])
        for name in measured[0][0]
    }


def not_judged(findings: tuple[Finding, ...] = ()) -> Verdict:
    """Return the verdict of every measurement of the study."""
    why = (
        "the study's protocol has no null model, so that its numbers are compared with the published ones only; the "
        "corrected measurement judges the claim"
    )
    return Verdict("not testable", why, findings)


_SIGNS = " (depends on the arbitrary signs of the axes)"
SIMILARITIES = {
    "direct_cosine": Statistic(f"mean cosine, token by token{_SIGNS}"),
    "negative_share": Statistic(f"share of tokens with a negative cosine{_SIGNS}"),
    "matching_cosine": Statistic(f"mean cosine under the best assignment of tokens{_SIGNS}"),
    "matching_least": Statistic(f"smallest cosine under that assignment{_SIGNS}"),
    "matching_most": Statistic(f"largest cosine under that assignment{_SIGNS}"),
    "relative_frobenius": Statistic(f"|V - V_theory| / |V|{_SIGNS}"),
    "row_l2": Statistic(f"mean over tokens of |v - v_theory|{_SIGNS}"),
    "row_l1": Statistic(f"mean over tokens of the sum of |v - v_theory|{_SIGNS}"),
    "pearson": Statistic(f"mean correlation, token by token{_SIGNS}"),
    "allclose": Statistic("share of heads with V equal to V_theory, rtol 1e-3 and atol 1e-5"),
    "linear_cka": Statistic("linear CKA, biased"),
    "kernel_cka": Statistic("CKA with RBF kernels, each of its own median width"),
}


def similarities(v: Matrix, theory: Matrix) -> dict[str, Tensor]:
    """Return every similarity."""
    cosines = _unit(v) @ _unit(theory).T
    direct = cosines.diagonal()
    pearson = (_unit(_rows_centred(v)) * _unit(_rows_centred(theory))).sum(-1)
    rows, columns = linear_sum_assignment(-cosines.cpu().numpy())
    matched, gap = cosines[rows, columns], v - theory
    return {
        "direct_cosine": direct.mean(),
        "negative_share": (direct < 0).double().mean(),
        "matching_cosine": matched.mean(),
        "matching_least": matched.min(),
        "matching_most": matched.max(),
        "relative_frobenius": gap.norm() / v.norm(),
        "row_l2": gap.norm(dim=-1).mean(),
        "row_l1": gap.abs().sum(-1).mean(),
        "pearson": pearson.mean(),
        "allclose": v.new_tensor(float(torch.allclose(v, theory, rtol=1e-3, atol=1e-5))),
        "linear_cka": _cka(v @ v.T, theory @ theory.T),
        "kernel_cka": _cka(_rbf(v), _rbf(theory)),
    }


def _unit(x: Matrix) -> Matrix:
    unit: Tensor = x / (x.norm(dim=-1, keepdim=True) + 1e-8)
    return unit


def _rows_centred(x: Matrix) -> Matrix:
    return x - x.mean(-1, keepdim=True)


def _rbf(x: Matrix) -> Square:
    """Return exp(-d^2 / (2 s^2)) with s^2 the median of the squared distances that are not 0."""
    squared = (x.unsqueeze(1) - x.unsqueeze(0)).square().sum(-1)
    positive = squared[squared > 0]
    width = positive.median() if len(positive) else squared.new_tensor(1.0)
    return (-squared / (2 * width)).exp()


def _cka(x: Square, y: Square) -> Tensor:
    """Return HSIC(X, Y) / (sqrt(HSIC(X, X)) sqrt(HSIC(Y, Y)) + 1e-10), HSIC the sum of products of H X H and H Y H."""
    centring = torch.eye(len(x), dtype=x.dtype, device=x.device) - 1 / len(x)
    x, y = centring @ x @ centring, centring @ y @ centring
    return (x * y).sum() / ((x * x).sum().sqrt() * (y * y).sum().sqrt() + 1e-10)
