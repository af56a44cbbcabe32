"""Symmetric attention: keys are also the queries, so there are only K and V.

Teo & Nguyen (2024), "Unveiling the Hidden Structure of Self-Attention via Kernel Principal Component Analysis",
arXiv:2406.13762, section 3 (the SymViT baseline).
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention._rotary import require_pairs, rotated

Heads = Float[Tensor, "batch heads tokens head_dim"]
Tokens = Float[Tensor, "batch tokens dim"]


def split_heads(projected: Tokens, parts: int, heads: int) -> tuple[Heads, ...]:
    """Cut (batch, tokens, parts * C) into `parts` tensors of (batch, heads, tokens, C / heads)."""
    batch, tokens, _ = projected.shape
    return projected.view(batch, tokens, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(heads: Heads) -> Tokens:
    """Put the heads side by side again: (batch, tokens, C)."""
    return heads.transpose(1, 2).flatten(2)


def require_heads(dim: int, num_heads: int) -> None:
    """Refuse a width that is not a multiple of the number of heads."""
    if dim % num_heads:
        raise BadInputError(f"width {dim} with {num_heads} heads", expected="a multiple of the number of heads")


KeyMask = Bool[Tensor, "batch 1 1 tokens"]
"""True for the keys that are seen; the others are padding."""


def require_key_mask(attention: nn.Module, mask: Tensor | None, *, causal: bool) -> None:
    """Refuse a mask other than a `KeyMask`, and one together with the causal mask, for which there is `is_causal`."""
    if mask is not None and (causal or mask.dtype != torch.bool or mask.ndim != 4 or mask.shape[1:3] != (1, 1)):
        raise BadInputError(
            f"a mask for {type(attention).__name__}", expected="no mask, is_causal=True, or bool (batch, 1, 1, tokens)"
        )


def refuse_options(layer: nn.Module, **asked: Any) -> None:
    """Refuse options of timm that the layer does not have."""
    if any(asked.values()):
        met = " and ".join(name for name, value in asked.items() if value)
        raise BadInputError(f"{met} with {type(layer).__name__}", expected=f"none of {', '.join(asked)}")


class SymmetricAttention(nn.Module):
    """out = proj(softmax(K K^T / sqrt(D)) V), with (K, V) = qkv(x).

    One linear layer of width 2C gives K (index 0) and V (index 1). Its name is `projection`: `qkv` as in the authors'
    checkpoints, `kv` in those of FAN. With `rotary`, keys are turned by their place. The other parameters are what
    timm >= 1.0.23 passes to an `attn_layer`.
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
        norm_layer: Any = None,  # noqa: ARG002 (timm passes it; without qk_norm it has no use)
        device: Any = None,
        dtype: Any = None,
        projection: str = "qkv",
        rotary: bool = False,
    ) -> None:
        super().__init__()
        require_heads(dim, num_heads)
        if rotary:
            require_pairs(dim // num_heads)
        refuse_options(self, qk_norm=qk_norm, scale_norm=scale_norm)
        self.num_heads, self.rotary = num_heads, rotary
        self.projection = projection
        self.add_module(projection, nn.Linear(dim, 2 * dim, bias=qkv_bias, device=device, dtype=dtype))
        self.attn_drop = attn_drop
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def keys_and_values(self, x: Tokens) -> tuple[Heads, ...]:
        """Project tokens to (K, V)."""
        k, v = split_heads(getattr(self, self.projection)(x), 2, self.num_heads)
        return self.turned(k), v

    def turned(self, k: Heads) -> Heads:
        """Return keys as the softmax sees them: turned by their place, if the layer does so."""
        return rotated(k) if self.rotary else k

    def attend(self, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:
        """Mix the values of one layer, head by head."""
        dropout = self.attn_drop if self.training else 0.0
        return F.scaled_dot_product_attention(k, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)

    def forward(self, x: Tokens, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tokens:
        """Map tokens to tokens; later tokens (`is_causal`) or padding (a `KeyMask`) are hidden, other masks refused."""
        require_key_mask(self, attn_mask, causal=is_causal)
        k, v = self.keys_and_values(x)
        out: Tensor = self.proj_drop(self.proj(merge_heads(self.attend(k, v, causal=is_causal, mask=attn_mask))))
        return out


ATTENTION = SymmetricAttention
