"""Symmetric attention: keys serve as queries, so there are K and V only.

Teo & Nguyen (2024), "Unveiling the Hidden Structure of Self-Attention via Kernel Principal Component Analysis",
arXiv:2406.13762, section 3 (the SymViT baseline).
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.errors import BadInputError

Heads = Float[Tensor, "batch heads tokens head_dim"]
Tokens = Float[Tensor, "batch tokens dim"]


class SymmetricAttention(nn.Module):
    """out = proj(softmax(K K^T / sqrt(D)) V), with (K, V) = qkv(x).

    One linear layer of width 2C named `qkv` (index 0 is K, 1 is V), so the authors' checkpoints load strictly.
    The signature is what timm >= 1.0.23 passes to an `attn_layer`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: Any = None,
        dtype: Any = None,
        **unused: Any,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise BadInputError(f"width {dim} with {num_heads} heads", expected="a width the heads divide")
        if unused.get("qk_norm") or unused.get("scale_norm"):
            raise BadInputError("qk_norm or scale_norm with symmetric attention", expected="neither")
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 2 * dim, bias=qkv_bias, device=device, dtype=dtype)
        self.attn_drop = attn_drop
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, k: Heads, v: Heads) -> Heads:
        """Mix the values of one layer, head by head."""
        dropout = self.attn_drop if self.training else 0.0
        return F.scaled_dot_product_attention(k, k, v, dropout_p=dropout)

    def forward(self, x: Tokens, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tokens:
        """Map tokens to tokens; masks are refused, vision needs none."""
        if attn_mask is not None or is_causal:
            raise BadInputError(f"a mask for {type(self).__name__}", expected="no mask")
        batch, tokens, dim = x.shape
        k, v = self.qkv(x).view(batch, tokens, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed: Tensor = self.attend(k, v).transpose(1, 2).reshape(batch, tokens, dim)
        out: Tensor = self.proj_drop(self.proj(mixed))
        return out


ATTENTION = SymmetricAttention
