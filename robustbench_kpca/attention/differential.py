"""Differential attention: the difference of two softmax maps, (softmax(Q1 K1^T) - lambda softmax(Q2 K2^T)) V.

Ye et al. (2024), "Differential Transformer", arXiv:2410.05258, version 1. Takahashi et al. (2025), arXiv:2510.00517,
find that the subtraction raises the sensitivity to attacks.
"""

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.shared.heads import Heads, KeyMask
from robustbench_kpca.attention.shared.weights import WeightedAttention, require_count


class DifferentialAttention(WeightedAttention):
    """out = proj((1 - lambda_0) RMSNorm((A_1 - lambda A_2) V)), head by head.

        lambda = exp(lambda_q1 lambda_k1) - exp(lambda_q2 lambda_k2) + lambda_0, lambda_0 = 0.8 - 0.6 exp(-0.3 layer)

    A_1 and A_2 are those of the first and the second half of a head's queries and keys. Beside the parameters of
    softmax attention there are four vectors of half a head's width, shared by the heads, and the gains of the norm. In
    the identity twin both maps are the unit matrix. The authors' code is causal unless a mask is given; this is not.

    Args:
        dim: width of the tokens.
        num_heads: number of heads, each with two maps, of even width.
        layer: number of the layer, from 0; `models.place` gives it.
        **options: options of `WeightedAttention`.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, layer: int = 0, **options: Any) -> None:
        require_count("layer", layer)
        if dim // num_heads % 2:
            raise BadInputError(
                f"heads of width {dim // num_heads} in differential attention", expected="an even width"
            )
        super().__init__(dim, num_heads, **options)
        width, weight = dim // num_heads, self.proj.weight
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            self.register_parameter(name, nn.Parameter(weight.new_empty(width // 2).normal_(std=0.1)))
        self.subln = nn.RMSNorm(width, eps=1e-5, device=weight.device, dtype=weight.dtype)

    def share(self) -> Float[Tensor, ""]:
        """Return lambda."""
        first, second = ((getattr(self, f"lambda_q{i}") * getattr(self, f"lambda_k{i}")).sum().exp() for i in (1, 2))
        share: Tensor = first - second + self.start
        return share

    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:
        """Mix the values by the difference of the two maps."""
        halves = zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
        first, second = (self.attn_drop(self.weights(*half, causal=causal, mask=mask)) for half in halves)
        out: Heads = (1 - self.start) * self.subln((first - self.share() * second) @ v)
        return out


ATTENTION = DifferentialAttention
