"""Symmetric attention: keys are also the queries, so there are only K and V.

Teo & Nguyen (2024), "Unveiling the Hidden Structure of Self-Attention via Kernel Principal Component Analysis",
arXiv:2406.13762, section 3 (the SymViT baseline).
"""

from typing import ClassVar

from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention.shared.heads import Heads, KeyMask, MultiHeadAttention


class SymmetricAttention(MultiHeadAttention):
    """out = proj(softmax(K K^T / sqrt(D)) V), with (K, V) = qkv(x): index 0 of the layer is K, index 1 is V."""

    symmetric: ClassVar[bool] = True

    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:
        """Mix the values; `q` are the keys."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout, is_causal=causal)


ATTENTION = SymmetricAttention
