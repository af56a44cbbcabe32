"""Elliptical attention: distances between tokens count more along the head's coordinates in which values change.

Nielsen et al. (2024), "Elliptical Attention", arXiv:2406.13770. The estimator is that of the released code for
ImageNet, "over layers" with "maxscale"; the constant by which that code divides changes cancels in m.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.attention.shared.chain import ChainedAttention
from robustbench_kpca.attention.shared.heads import Heads, KeyMask
from robustbench_kpca.attention.shared.weights import Gradient, require_choice

TINY = 1e-12

Metric = Float[Tensor, "batch heads #tokens head_dim"]


def metric(v: Heads, before: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Metric:
    """Return m_d = c_d / max_d c_d, c_d = mean_n |v_nd - before_nd|: (batch, heads, 1, width); 1 where nothing changes.

    The mean leaves padding out. With `causal`, which the released code lacks, the mean at token t is over tokens up to
    t: (batch, heads, tokens, width).
    """
    change = (v - before).abs()
    if causal:
        count = torch.arange(1, v.shape[-2] + 1, device=v.device, dtype=v.dtype)
        mean = change.cumsum(-2) / count.unsqueeze(-1)
    elif mask is None:
        mean = change.mean(-2, keepdim=True)
    else:
        present = mask.transpose(-2, -1).to(v.dtype)
        mean = (change * present).sum(-2, keepdim=True) / present.sum(-2, keepdim=True).clamp_min(1)
    most = mean.amax(-1, keepdim=True)
    return torch.where(most > TINY, mean / most.clamp_min(TINY), 1.0)


class EllipticalAttention(ChainedAttention):
    """out = proj(softmax(Q diag(m) K^T / sqrt(D)) V), m from V of this layer and of the one before in the chain.

    The first layer of the chain, and any with m = 1, is softmax attention; the parameters are the same. With gradient
    `released`, as in the authors' code, m counts as a constant. Their median over tokens, not mean, is left out.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, gradient: Gradient = "restored", **options: Any) -> None:
        require_choice("gradient", gradient, Gradient)
        super().__init__(dim, num_heads, **options)
        self.gradient = gradient

    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:
        """Mix the values by scaled queries."""
        before = self.earlier(v)
        if before is not None:
            m = metric(v, before, causal=causal, mask=mask)
            q = q * (m.detach() if self.gradient == "released" else m)
        return super().attend(q, k, v, causal=causal, mask=mask)


ATTENTION = EllipticalAttention
