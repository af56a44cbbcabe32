"""Scaled attention: softmax(Q K^T / sqrt(D)) (I - S) V; S is a learned matrix or a multiple of softmax(K K^T).

Teo & Nguyen (2024), arXiv:2406.13762, Remark 3, equation 12 and appendix E.1.

- Paper: S_jj' = (1/N) g(k_j') / g(k_j) follows from the keys; for training it is learned (S) or alpha softmax(K K^T).
- Released code: S is a parameter of shape (heads, N, N), or alpha is one number a layer; both are zero at first.
- Here: both forms of the released code (`form`), and a causal form of each, which neither has.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.shared.heads import Heads, refuse_options
from robustbench_kpca.attention.softmax import SoftmaxAttention

FORMS = ("matrix", "alpha")


class ScaledAttention(SoftmaxAttention):
    """Softmax attention on V' = V - S V.

    `matrix`: S is a parameter `s` of shape (heads, tokens, tokens), for one number of tokens only. `alpha`: `s` is one
    number, and S = s softmax(K K^T / sqrt(D)). Initially `s` is 0, and the layer is softmax attention.

    In the causal form both softmaxes hide later tokens, and of the matrix S only the entries at and below the diagonal
    are used: V'_t = V_t - sum_{j <= t} S_tj V_j. Fewer tokens than its size then use its upper left part.
    """

    def __init__(self, dim: int, num_heads: int, *, tokens: int, form: str = "alpha", **options: Any) -> None:
        refuse_options(self, qk_norm=options.get("qk_norm"))
        super().__init__(dim, num_heads, **options)
        if form not in FORMS:
            raise BadInputError(f"form = '{form}'", expected=" or ".join(f"'{choice}'" for choice in FORMS))
        self.form = form
        self.s = nn.Parameter(torch.zeros(num_heads, tokens, tokens) if form == "matrix" else torch.zeros(()))

    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False) -> Heads:  # type: ignore[override]
        """Mix V - S V by softmax attention."""
        tokens = k.shape[2]
        if self.form == "matrix" and not (tokens <= len(self.s[0]) if causal else tokens == len(self.s[0])):
            raise BadInputError(f"{tokens} tokens", expected=f"{len(self.s[0])}, the size of the learned matrix S")
        if self.form == "alpha":
            scaled = self.s * F.scaled_dot_product_attention(k, k, v, is_causal=causal)
        else:
            scaled = (self.s[:, :tokens, :tokens].tril() if causal else self.s) @ v
        return F.scaled_dot_product_attention(q, k, v - scaled, dropout_p=self.dropout, is_causal=causal)


ATTENTION = ScaledAttention
