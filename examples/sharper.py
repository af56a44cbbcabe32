"""Symmetric attention with scores four times as large: `--set model_options.attention=examples/sharper.py:Sharper`.

It is what four iterations of the pursuit come to while S is empty and L is small beside K: M = -2 K.
"""

from typing import Any

from torch import Tensor

from robustbench_kpca.attention.symmetric import SymmetricAttention


class Sharper(SymmetricAttention):
    """out = proj(softmax(4 K K^T / sqrt(D)) V)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        """Mix the values."""
        return super().attend(4 * q, k, v, **how)
