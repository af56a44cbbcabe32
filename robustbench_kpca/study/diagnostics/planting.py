"""Synthetic keys with a known split: random low-rank matrices with gross outliers, and metrics of their recovery.

The model of Candès et al. (2011), arXiv:0912.3599, section 3: L_0 = X Y^T with Gaussian factors, the support of S_0
uniform at random, with random signs.

The textbook solver is that of the same paper, algorithm 1: the alternating directions method on the augmented
Lagrangian, with the parameters of section 5.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.attention.rpc import Pursuit
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.layer import Heads
from robustbench_kpca.study.diagnostics.pursuits import PerHead, iterates

DETECTED = 1e-3
"""An entry of S counts as a detected outlier if it exceeds this many deviations of L_0."""
Matrices = Float[Tensor, "*batch rows columns"]
TOLERANCE = 1e-7
MOST_STEPS = 2000


@dataclass(frozen=True)
class Planted:
    """K = L_0 + S_0 for some images and heads; entries of L_0 have expected square scale^2."""

    low_rank: Heads
    sparse: Heads
    scale: PerHead

    @property
    def keys(self) -> Heads:
        """K."""
        return self.low_rank + self.sparse

    def scaled(self, factors: Float[Tensor, "images heads"]) -> "Planted":
        """Return the problems multiplied by factors, one per image and head."""
        wide = factors[..., None, None]
        return Planted(self.low_rank * wide, self.sparse * wide, self.scale * factors)


@dataclass(frozen=True)
class Recovery:
    """How well each planted split was recovered.

    `error` is |L - L_0|_F / |L_0|_F; `precision` of an empty support is 0; `f1` is the harmonic mean of precision and
    recall. `residual` is that of the textbook solver (see `Split`), and 0 for other rules.
    """

    error: PerHead
    precision: PerHead
    recall: PerHead
    f1: PerHead
    residual: float = 0.0


def plant(
    tokens: int,
    width: int,
    samples: tuple[str, ...],
    *,
    seed: int = 0,
    rank: float = thresholds.PLANTED_RANK,
    share: float = thresholds.OUTLIER_SHARE,
    size: float = thresholds.OUTLIER_SIZE,
) -> Planted:
    """Draw a problem for every sample, (samples, 1, tokens, width).

    `rank` (at least rank 1) and `share` (of outliers) are relative to the matrix, `size` is in deviations of L_0.
    """
    drawn = [_draw(tokens, width, sample, seed, rank=rank, share=share) for sample in samples]
    low_rank, signs = (torch.stack(part).unsqueeze(1) for part in zip(*drawn, strict=True))
    return Planted(low_rank, size * signs, torch.ones(len(samples), 1, dtype=torch.float64))


def recovery(planted: Planted, low_rank: Heads, sparse: Heads) -> Recovery:
    """Compare splits with the planted splits."""
    detected = sparse.abs() > DETECTED * planted.scale[..., None, None]
    truth = planted.sparse != 0
    hits, all_detected, all_there = (x.double().sum((-2, -1)) for x in (detected & truth, detected, truth))
    error = torch.linalg.matrix_norm(low_rank - planted.low_rank) / torch.linalg.matrix_norm(planted.low_rank)
    f1 = 2 * hits / (all_detected + all_there).clamp_min(1)
    return Recovery(error, hits / all_detected.clamp_min(1), hits / all_there.clamp_min(1), f1)


def pursue(planted: Planted, pursuit: Pursuit, *, oracle: bool = False) -> Recovery:
    """Split planted keys with the symmetric pursuit of a layer.

    Values are the keys themselves or, with `oracle`, the clean L_0, which identity attention would return unchanged.
    """
    values = planted.low_rank if oracle else planted.keys
    last = iterates(pursuit, planted.keys, values)[-1]
    return recovery(planted, last.low_rank, last.sparse)


def textbook(planted: Planted) -> Recovery:
    """Split planted keys by textbook principal component pursuit; the recovery does not depend on their scale."""
    split = principal_component_pursuit(planted.keys)
    return replace(recovery(planted, split.low_rank, split.sparse), residual=split.residual)


def paper_rule(pursuit: Pursuit) -> Pursuit:
    """Return the pursuit as printed in the paper: threshold lam / mu, mu from one head's width, printed dual sign."""
    return replace(pursuit, threshold="lam/mu", mu_width="head", dual_sign=-1)


def textbook_rule(pursuit: Pursuit) -> Pursuit:
    """Return the pursuit with textbook threshold and sign; attention still replaces the singular-value step."""
    return replace(pursuit, threshold="lam/mu", mu_width="head", dual_sign=1)


def _draw(tokens: int, width: int, sample: str, seed: int, rank: float, share: float) -> tuple[Tensor, Tensor]:
    rng = generator(sample_key(seed, f"planted/{tokens}x{width}", sample))
    count = max(1, round(rank * min(tokens, width)))
    low_rank = rng.standard_normal((tokens, count)) @ rng.standard_normal((count, width)) / count**0.5
    signs = torch.zeros(tokens * width, dtype=torch.float64)
    places = torch.from_numpy(rng.permutation(tokens * width)[: round(share * tokens * width)])
    signs[places] = torch.from_numpy(rng.choice([-1.0, 1.0], len(places)))
    return torch.from_numpy(low_rank), signs.view(tokens, width)


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
