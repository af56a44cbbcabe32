"""SpecFormer: softmax attention whose training adds the squared largest singular values of W_Q, W_K and W_V as a loss.

Hu et al. (2024), "SpecFormer: Guarding Vision Transformer Robustness via Maximum Singular Value Penalization",
arXiv:2402.03317.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.attention.primal import Penalised
from robustbench_kpca.attention.shared.heads import Tokens
from robustbench_kpca.attention.shared.weights import require_choice
from robustbench_kpca.attention.softmax import SoftmaxAttention

Groups = Literal["released", "heads"]


class SpecformerAttention(Penalised, SoftmaxAttention):
    """Softmax attention; in training mode `penalties["spectral"]` is the sum over W_Q, W_K, W_V and groups of sigma^2.

    sigma is the largest singular value of a group of a matrix W, exactly: the released code approaches it by one step
    of power iteration a batch. `released`: groups cut the inputs (columns) of W, as the code does; `heads`: its
    outputs.

    A recipe's weight multiplies the mean over layers; the authors sum, so the weight for their c is c times the depth.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, groups: Groups = "released", **options: Any) -> None:
        require_choice("groups", groups, Groups)
        super().__init__(dim, num_heads, **options)
        self.groups = groups

    def forward(self, x: Tokens, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tokens:
        """Map tokens to tokens as softmax attention does."""
        self.penalties = {"spectral": self.spectral()} if self.training else {}
        return super().forward(x, attn_mask, is_causal)

    def spectral(self) -> Float[Tensor, ""]:
        """Return the penalty, in at least single precision."""
        weight = getattr(self, self.projection).weight
        whole = weight.to(torch.promote_types(weight.dtype, torch.float32)).unflatten(0, (3, -1))
        cut = whole.unflatten(-1 if self.groups == "released" else 1, (self.num_heads, -1))
        groups = cut.movedim(-2 if self.groups == "released" else 1, 1)
        sigma: Tensor = torch.linalg.matrix_norm(groups, 2)
        return sigma.square().sum()


ATTENTION = SpecformerAttention
