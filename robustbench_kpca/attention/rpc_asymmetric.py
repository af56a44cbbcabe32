"""Asymmetric RPC attention: the pursuit splits the keys, the queries do not change: softmax(Q M^T / sqrt(D)) V.

Teo & Nguyen (2024), arXiv:2406.13762, appendix E.10, first form. The second form has symmetric RPC attention in the
first layer and softmax attention in the others: see the family `rpc_vit_sym` in models/families.py.
"""

from typing import Any

from torch import Tensor

from robustbench_kpca.attention.rpc import Observer, Pursuit
from robustbench_kpca.attention.softmax import SoftmaxAttention
from robustbench_kpca.attention.symmetric import Tokens, merge_heads, require_key_mask


class AsymmetricRPCAttention(SoftmaxAttention):
    """Softmax attention with Principal Attention Pursuit on the keys; the parameters are those of softmax attention.

    Takes the options of softmax attention and of `Pursuit`. With 0 iterations it is
    softmax attention.
    """

    def __init__(self, dim: int, num_heads: int = 8, **options: Any) -> None:
        pursuit = Pursuit.pop(options)
        super().__init__(dim, num_heads, **options)
        self.pursuit = pursuit
        self.observer: Observer | None = None

    def forward(self, x: Tokens, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tokens:
        """Map tokens to tokens; later tokens (`is_causal`) or padding (a `KeyMask`) are hidden, other masks refused."""
        require_key_mask(self, attn_mask, causal=is_causal)
        q, k, v = self.queries_keys_values(x)
        dropout = self.attn_drop.p if self.training else 0.0
        mixed = self.pursuit(k, v, q, causal=is_causal, mask=attn_mask, dropout=dropout, observer=self.observer)
        out: Tensor = self.proj_drop(self.proj(merge_heads(mixed)))
        return out


ATTENTION = AsymmetricRPCAttention
