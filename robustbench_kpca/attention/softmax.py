"""Softmax attention: softmax(Q K^T / sqrt(D)) V.

Vaswani et al. (2017), "Attention Is All You Need", arXiv:1706.03762, equation 1. Names of parameters and results are
those of timm's `Attention`, bit for bit; importing timm itself takes seconds (decision 25).
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention._rotary import require_pairs, rotated
from robustbench_kpca.attention.symmetric import (
    Heads,
    Tokens,
    merge_heads,
    refuse_options,
    require_heads,
    require_key_mask,
    split_heads,
)


class SoftmaxAttention(nn.Module):
    """out = proj(softmax(Q K^T / sqrt(D)) V), with (Q, K, V) = qkv(x), one linear layer of width 3C.

    With `qk_norm`, every query and key is first normalised by its own `norm_layer`. With `rotary`, queries and keys are
    turned by their place. The other parameters are what timm >= 1.0.23 passes to an `attn_layer`.
    """

    takes_key_mask = True

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Any = None,
        device: Any = None,
        dtype: Any = None,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        require_heads(dim, num_heads)
        refuse_options(self, scale_norm=scale_norm)
        if rotary:
            require_pairs(dim // num_heads)
        self.rotary = rotary
        self.num_heads, width = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, device=device, dtype=dtype)
        self.q_norm, self.k_norm = (
            norm_layer(width, device=device, dtype=dtype) if qk_norm else nn.Identity() for _ in range(2)
        )
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def queries_keys_values(self, x: Tokens) -> tuple[Heads, Heads, Heads]:
        """Project tokens to (Q, K, V), normalised and turned as the layer's options say."""
        q, k, v = split_heads(self.qkv(x), 3, self.num_heads)
        return self.turned(self.q_norm(q)), self.turned(self.k_norm(k)), v

    def turned(self, x: Heads) -> Heads:
        """Return queries or keys as the softmax sees them: turned by their place, if the layer does so."""
        return rotated(x) if self.rotary else x

    def forward(self, x: Tokens, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tokens:
        """Map tokens to tokens; later tokens (`is_causal`) or padding (a `KeyMask`) are hidden, other masks refused."""
        require_key_mask(self, attn_mask, causal=is_causal)
        q, k, v = self.queries_keys_values(x)
        dropout = self.attn_drop.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=is_causal)
        out: Tensor = self.proj_drop(self.proj(merge_heads(mixed)))
        return out


ATTENTION = SoftmaxAttention
