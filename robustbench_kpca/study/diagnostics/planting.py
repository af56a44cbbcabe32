"""Synthetic keys with a known split: random low-rank matrices with gross outliers, and metrics of their recovery.

The model of Candès et al. (2011), arXiv:0912.3599, section 3: L_0 = X Y^T with Gaussian factors, the support of S_0
uniform at random, with random signs.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.attention.rpc import Pursuit
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.layer import Heads
from robustbench_kpca.study.diagnostics.pcp import principal_component_pursuit
from robustbench_kpca.study.diagnostics.pursuits import PerHead, iterates

DETECTED = 1e-3
"""An entry of S counts as a detected outlier if it exceeds this many deviations of L_0."""


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
    there = planted.sparse != 0
    hits, seen, all_there = (x.double().sum((-2, -1)) for x in (detected & there, detected, there))
    error = torch.linalg.matrix_norm(low_rank - planted.low_rank) / torch.linalg.matrix_norm(planted.low_rank)
    f1 = 2 * hits / (seen + all_there).clamp_min(1)
    return Recovery(error, hits / seen.clamp_min(1), hits / all_there.clamp_min(1), f1)


def pursue(planted: Planted, pursuit: Pursuit, heads: int, *, oracle: bool = False) -> Recovery:
    """Split planted keys with the symmetric pursuit of a layer with `heads` heads.

    Values are the keys themselves or, with `oracle`, the clean L_0, which identity attention would return unchanged.
    """
    values = planted.low_rank if oracle else planted.keys
    last = iterates(pursuit, heads, planted.keys, values)[-1]
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
