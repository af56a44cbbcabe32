"""L2 attention: a softmax over negative squared distances, with W_Q = W_K.

Kim, Papamakarios & Mnih (2021), "The Lipschitz Constant of Self-Attention", arXiv:2006.04710. Their proof also
multiplies the output by W_Q W_Q^T; like most uses, this leaves it out, so no Lipschitz bound is claimed here.
"""

from typing import ClassVar

from torch import Tensor

from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.attention.shared.weights import WeightedAttention, Weights


class L2Attention(WeightedAttention):
    """out = proj(softmax_j(-||k_i - k_j||^2 / sqrt(D)) V); the parameters are those of symmetric attention."""

    symmetric: ClassVar[bool] = True

    def scores(self, q: Heads, k: Heads) -> Weights:
        """Return (2 k_i k_j - ||k_j||^2) / sqrt(D): the softmax of the distances, whose ||k_i||^2 cancels."""
        lengths: Tensor = k.square().sum(-1).unsqueeze(-2) * k.shape[-1] ** -0.5
        return 2 * super().scores(q, k) - lengths


ATTENTION = L2Attention
