"""The study's kernel PCA of one head, on plain (tokens, width) matrices."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.study.diagnostics.claims import Verdict
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
    """Return the eigenvectors of the `count` eigenvalues largest in absolute value: the study's script for images."""
    values, vectors = torch.linalg.eigh(gram)
    order = values.abs().argsort(descending=True)
    chosen: Tensor = vectors[:, order[:count]]
    return chosen


def last_axes(gram: Square, count: int) -> Matrix:
    """Return the last `count` eigenvectors of `eigh`, in its ascending order: the study's script for texts."""
    vectors: Tensor = torch.linalg.eigh(gram).eigenvectors
    return vectors[:, -count:]


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
