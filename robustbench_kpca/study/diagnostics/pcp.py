"""Textbook principal component pursuit: split a matrix into a low-rank and a sparse part.

Candès, Li, Ma & Wright (2011), "Robust Principal Component Analysis?", J. ACM 58(3), arXiv:0912.3599, algorithm 1: the
alternating directions method on the augmented Lagrangian, with the parameters of section 5.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Matrices = Float[Tensor, "*batch rows columns"]

TOLERANCE = 1e-7
MOST_STEPS = 2000


@dataclass(frozen=True)
class Split:
    """K = L + S; `residual` is the larger of the two residuals relative to K, maximal over the batch."""

    low_rank: Matrices
    sparse: Matrices
    steps: int
    residual: float


def principal_component_pursuit(
    keys: Matrices, *, lam: float | None = None, tolerance: float = TOLERANCE, most_steps: int = MOST_STEPS
) -> Split:
    """Minimise |L|_* + lam |S|_1 subject to L + S = K, for every matrix of a batch.

    From S = Y = 0, with shrink(x; t) = sign(x) max(|x| - t, 0) and D(X; t), which shrinks the singular values of X,

        L <- D(K - S + Y / mu; 1 / mu)
        S <- shrink(K - L + Y / mu; lam / mu)
        Y <- Y + mu (K - L - S)

    with lam = 1 / sqrt(max(rows, columns)) and mu = rows columns / (4 |K|_1), until both |K - L - S|_F and the last
    change of S are at most tolerance |K|_F. The paper requires only the first, which may hold far from the minimum;
    the second is the dual residual (Boyd et al., 2011, section 3.3).

    Args:
        keys: K.
        lam: weight of the sparse part; by default the paper's.
        tolerance: bound on both residuals, relative to K.
        most_steps: largest number of iterations; `residual` shows whether it converged.

    """
    rows, columns = keys.shape[-2:]
    lam = max(rows, columns) ** -0.5 if lam is None else lam
    mu = rows * columns / (4 * keys.abs().sum((-2, -1), keepdim=True).clamp_min(1e-300))
    size = torch.linalg.matrix_norm(keys).clamp_min(1e-300)
    sparse = dual = torch.zeros_like(keys)  # Y / mu
    low_rank, residual = sparse, 0.0
    for step in range(1, most_steps + 1):
        low_rank = _shrink_singular_values(keys - sparse + dual, 1 / mu)
        argument = keys - low_rank + dual
        before, sparse = sparse, argument - argument.clamp(-lam / mu, lam / mu)
        dual = argument - sparse
        gaps = (keys - low_rank - sparse, sparse - before)
        residual = max(float((torch.linalg.matrix_norm(gap) / size).max()) for gap in gaps)
        if residual <= tolerance:
            return Split(low_rank, sparse, step, residual)
    return Split(low_rank, sparse, most_steps, residual)


def _shrink_singular_values(x: Matrices, bound: Tensor) -> Matrices:
    u, sizes, vh = torch.linalg.svd(x, full_matrices=False)
    shrunk: Tensor = (u * (sizes - bound.squeeze(-1)).clamp_min(0).unsqueeze(-2)) @ vh
    return shrunk
