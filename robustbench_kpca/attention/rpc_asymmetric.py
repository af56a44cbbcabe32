"""Asymmetric RPC attention: the pursuit splits the keys, the queries do not change: softmax(Q M^T / sqrt(D)) V.

Teo & Nguyen (2024), arXiv:2406.13762, appendix E.10, first form. The second form has symmetric RPC attention in the
first layer and softmax attention in the others: see the family `rpc_vit_sym` in models/families.py.
"""

from typing import Any, ClassVar

from robustbench_kpca.attention.rpc import Observer, Pursuit
from robustbench_kpca.attention.shared.heads import Heads, KeyMask
from robustbench_kpca.attention.softmax import SoftmaxAttention


class AsymmetricRPCAttention(SoftmaxAttention):
    """Softmax attention with Principal Attention Pursuit on the keys; the parameters are those of softmax attention.

    Takes the options of softmax attention and of `Pursuit`. With 0 iterations it is
    softmax attention.
    """

    off: ClassVar[str] = "lam=inf"

    def __init__(self, dim: int, num_heads: int = 8, **options: Any) -> None:
        pursuit = Pursuit.pop(options)
        super().__init__(dim, num_heads, **options)
        self.pursuit = pursuit
        self.observer: Observer | None = None

    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:
        """Run the pursuit on one layer's keys and values, and mix by its queries."""
        return self.pursuit(k, v, q, causal=causal, mask=mask, dropout=self.dropout, observer=self.observer)


ATTENTION = AsymmetricRPCAttention
