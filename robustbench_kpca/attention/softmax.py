"""Softmax attention: softmax(Q K^T / sqrt(D)) V.

Vaswani et al. (2017), "Attention Is All You Need", arXiv:1706.03762, equation 1. Names of parameters and results are
those of timm's `Attention`, bit for bit; importing timm itself takes seconds (decision 25).
"""

from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention.shared.heads import Heads, KeyMask, MultiHeadAttention


class SoftmaxAttention(MultiHeadAttention):
    """out = proj(softmax(Q K^T / sqrt(D)) V), with (Q, K, V) = qkv(x)."""

    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:
        """Mix the values."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout, is_causal=causal)


ATTENTION = SoftmaxAttention
