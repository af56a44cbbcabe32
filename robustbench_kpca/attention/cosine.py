"""Scaled cosine attention: softmax(10 q k^T) V with queries and keys of length 1, as LipsFormer's code has it.

Qi et al. (2023), "LipsFormer: Introducing Lipschitz Continuity to Vision Transformers", arXiv:2304.09856. It is meant
for stable training; the authors claim no robustness. Their relative bias and CenterNorm are not part of it.
"""

from typing import Any

from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.attention.shared.weights import WeightedAttention, Weights, require_positive


class CosineAttention(WeightedAttention):
    """out = proj(softmax(scale * q k^T / (||q|| ||k||)) V); every weight is at least exp(-2 scale) / N."""

    def __init__(self, dim: int, num_heads: int = 8, *, scale: float = 10.0, **options: Any) -> None:
        require_positive("scale", scale)
        super().__init__(dim, num_heads, **options)
        self.scale = scale

    def scores(self, q: Heads, k: Heads) -> Weights:
        """Return scaled cosines."""
        return self.scale * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)


ATTENTION = CosineAttention
