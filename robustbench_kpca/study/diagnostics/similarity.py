"""Similarities of two sets of token vectors, for all pairs of images at once.

Most measures are a cosine between a matrix made from X and one made from Y. Comparing every image's X with every
image's Y, as a null model requires, is then one matrix product. Linear and kernel CKA: Kornblith et al. (2019),
arXiv:1905.00414; debiased: Song et al. (2012), with the U-centring of Székely & Rizzo (2014), arXiv:1310.2926. Shapes
are (images, heads, tokens N, width D).
"""

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from robustbench_kpca.study.diagnostics.kernel import double_centred

Heads = Float[Tensor, "images heads tokens width"]
Grams = Float[Tensor, "images heads tokens tokens"]
Pairs = Float[Tensor, "images images heads"]
"""[i, j, h]: the X of image i against the Y of image j, in head h."""


def cosines(x: Float[Tensor, "images heads *shape"], y: Float[Tensor, "images heads *shape"]) -> Pairs:
    """Return <x_i, y_j> / (|x_i| |y_j|) of matrices as vectors; 0 if one of them is 0."""
    x, y = (unit_rows(z.flatten(2)) for z in (x, y))
    return torch.einsum("iha,jha->ijh", x, y)


def linear_gram(x: Heads) -> Grams:
    """Return H X X^T H; its cosine is the linear CKA, which is invariant to rotations of the axes."""
    x = x - x.mean(-2, keepdim=True)
    return x @ x.transpose(-2, -1)


def kernel_gram(x: Heads) -> Grams:
    """Return the centred RBF Gram matrix, exp(-d^2 / (2 s^2)).

    s^2 is the (lower) median of the nonzero squared distances.
    """
    x = x - x.mean(-2, keepdim=True)
    products = x @ x.transpose(-2, -1)
    sizes = products.diagonal(dim1=-2, dim2=-1)
    squared = sizes.unsqueeze(-1) + sizes.unsqueeze(-2) - 2 * products
    floor = sizes.amax(-1)[..., None, None] * x.shape[-1] * torch.finfo(x.dtype).eps
    squared = squared.masked_fill(squared <= floor, 0.0)  # equal tokens up to rounding
    median = squared.masked_fill(squared == 0, torch.nan).flatten(2).nanmedian(-1).values.nan_to_num(1.0)
    return double_centred((-squared / (2 * median[..., None, None])).exp())


def debiased_gram(x: Heads) -> Grams:
    """Return the U-centred X X^T; its cosine has mean near 0 for independent X and Y (with at least 4 tokens)."""
    tokens = x.shape[-2]
    x = unit_rows(x.flatten(2)).view_as(x)
    gram = x @ x.transpose(-2, -1)
    gram = _hollow(gram)
    means = gram.sum(-1, keepdim=True) / max(tokens - 2, 1)
    total = gram.sum((-2, -1), keepdim=True) / max((tokens - 1) * (tokens - 2), 1)
    gram = gram - means - means.transpose(-2, -1) + total
    return _hollow(gram)


def basis(x: Heads) -> Float[Tensor, "images heads tokens rank"]:
    """Return an orthonormal basis of the centred columns; columns beyond the numerical rank are 0."""
    u, sizes, _ = torch.linalg.svd(x - x.mean(-2, keepdim=True), full_matrices=False)
    floor = sizes[..., :1] * max(x.shape[-2:]) * torch.finfo(x.dtype).eps
    leading: Tensor = u * (sizes > floor).unsqueeze(-2)
    return leading


def principal_angles(x: Heads, y: Heads) -> Float[Tensor, "images heads count"]:
    """Return the angles in degrees, smallest first, between two subspaces given by their bases.

    Björck & Golub (1973). Missing dimensions count as right angles.
    """
    angles: Tensor = torch.linalg.svdvals(x.transpose(-2, -1) @ y).clamp(0, 1).acos().rad2deg()
    return angles


def unit_rows(x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """Scale every vector to length 1 (0 stays 0)."""
    largest = x.abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)  # so that squares do not underflow
    size = x.norm(dim=-1, keepdim=True)
    return x / torch.where(size > 0, size, 1)


def direct_cosine(x: Heads, y: Heads) -> Pairs:
    """Return the mean over tokens of the cosine between token j of X and token j of Y."""
    return torch.einsum("ihnd,jhnd->ijh", unit_rows(x), unit_rows(y)) / x.shape[-2]


def matching_cosine(x: Heads, y: Heads) -> Pairs:
    """Return the mean cosine under the best assignment of the tokens of X to those of Y (Kuhn 1955).

    It is invariant to permutations of the tokens, so these cannot serve as its null model.
    """
    x, y = unit_rows(x), unit_rows(y)
    means = x.new_empty(len(x), len(y), x.shape[1])
    for i in range(len(x)):
        for j in range(len(y)):
            for head, table in enumerate((x[i] @ y[j].transpose(-2, -1)).cpu().numpy()):
                rows, columns = linear_sum_assignment(table, maximize=True)
                means[i, j, head] = table[rows, columns].mean()
    return means


def relative_frobenius(x: Heads, y: Heads, log_scale: Float[Tensor, "images heads"]) -> Pairs:
    """Return |X - c Y| / |X| with c = e^log_scale for each Y, without normalising either; 1 if X is 0."""
    y = y * log_scale.exp()[..., None, None]
    inner = torch.einsum("ihnd,jhnd->ijh", x, y)
    square = x.square().sum((-2, -1)).unsqueeze(1)
    gap = (square - 2 * inner + y.square().sum((-2, -1))).clamp_min(0)
    return torch.where(square > 0, gap / torch.where(square > 0, square, 1), 1.0).sqrt()


def _hollow(gram: Grams) -> Grams:
    return gram.masked_fill(torch.eye(gram.shape[-1], dtype=torch.bool, device=gram.device), 0.0)
