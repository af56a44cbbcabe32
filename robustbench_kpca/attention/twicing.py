"""Twicing attention: what A smooths away is smoothed once more and added: (2 A - A^2) V.

Abdullaev & Nguyen (2025), "Transformer Meets Twicing: Harnessing Unattended Residual Information", arXiv:2503.00687.
"""

from typing import Any, ClassVar

import torch

from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.attention.shared.weights import WeightedAttention, Weights, require_count


class TwicingAttention(WeightedAttention):
    """out = proj((I - (I - A)^r) V), r = `order`: 2 A V - A^2 V for 2; softmax attention for 1.

    Rows of the matrix sum to 1, and entries may be negative. The parameters are those of softmax attention. The
    authors' code drops entries of A once for both of its uses, and so does this.
    """

    off: ClassVar[str] = "order=1"

    def __init__(self, dim: int, num_heads: int = 8, *, order: int = 2, **options: Any) -> None:
        require_count("order", order, least=1)
        super().__init__(dim, num_heads, **options)
        self.order = order

    def mixed(self, a: Weights, v: Heads) -> Heads:
        """Add A times what is left of V, `order` times."""
        out, residual = torch.zeros_like(v), v
        for _ in range(self.order):
            step = a @ residual
            out, residual = out + step, residual - step
        return out


ATTENTION = TwicingAttention
