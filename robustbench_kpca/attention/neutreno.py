"""NeuTRENO: every layer is drawn back to the values of the first: A V + alpha (V_0 - V).

Nguyen, Nguyen & Baraniuk (2023), "Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals",
arXiv:2312.00751.
"""

from typing import Any, ClassVar, Literal

from robustbench_kpca.attention.shared.chain import ChainedAttention
from robustbench_kpca.attention.shared.heads import Heads, KeyMask
from robustbench_kpca.attention.shared.weights import require_positive


class NeutrenoAttention(ChainedAttention):
    """out = proj(A V + alpha (V_0 - V)), V_0 of the first layer of the chain, which is softmax attention.

    The parameters are those of softmax attention, which alpha = 0 is. Its identity twin is V + alpha (V_0 - V). The
    default alpha is that of the authors' DeiT; for language they have 0.4.
    """

    reach: ClassVar[Literal["first", "previous"]] = "first"
    off: ClassVar[str] = "alpha=0"

    def __init__(self, dim: int, num_heads: int = 8, *, alpha: float = 0.6, **options: Any) -> None:
        require_positive("alpha", alpha, or_zero=True)
        super().__init__(dim, num_heads, **options)
        self.alpha = alpha

    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:
        """Mix the values, and add what the first layer's differ by."""
        first = self.earlier(v)
        out = super().attend(q, k, v, causal=causal, mask=mask)
        return out if first is None else out + self.alpha * (first - v)


ATTENTION = NeutrenoAttention
