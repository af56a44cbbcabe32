"""ProAttention: each token's mean of the values becomes a robust one, by iterated reweighting; no parameter is added.

Hou et al. (2024), "ProTransformer: Robustify Transformers via Plug-and-Play Paradigm", arXiv:2410.23182. It is meant
for trained softmax models, in every layer.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.attention.shared.weights import (
    Gradient,
    WeightedAttention,
    Weights,
    require_choice,
    require_count,
    require_positive,
)

Loss = Literal["l2", "l1", "mcp", "huber"]


class ProAttention(WeightedAttention):
    """out = proj(M) after `iterations` steps that lower sum_j A_ij rho(||m_i - v_j||) of every token i.

        M <- A V; then, n times,
        w_ij = f(||m_i - v_j||)       f(d) = 1 / (d + epsilon) of l1, min(1, delta / (d + epsilon)) of huber,
                                      max(1 / (d + epsilon) - 1 / gamma, epsilon) of mcp
        M <- (1 - step) M + step (rows of w A, divided by their sums) V

    With 0 iterations, loss `l2`, or `huber` with delta above all distances, it is softmax attention. As released, M and
    V are constants in w: gradient `released`.

    Args:
        dim: width of the tokens.
        num_heads: number of heads.
        loss: rho.
        iterations: n.
        epsilon: bound of w.
        gamma: parameter of `mcp`.
        delta: parameter of `huber`.
        step: t, at most 1.
        gradient: `released` or `restored`, see `Gradient`.
        **options: options of `WeightedAttention`.
    """

    off: ClassVar[str] = "iterations=0"

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        loss: Loss = "mcp",
        iterations: int = 3,
        epsilon: float = 0.01,
        gamma: float = 4.0,
        delta: float = 4.0,
        step: float = 1.0,
        gradient: Gradient = "restored",
        **options: Any,
    ) -> None:
        require_choice("loss", loss, Loss)
        require_choice("gradient", gradient, Gradient)
        require_count("iterations", iterations)
        for option, value in (("epsilon", epsilon), ("gamma", gamma), ("delta", delta), ("step", step)):
            require_positive(option, value)
        super().__init__(dim, num_heads, **options)
        self.loss, self.iterations, self.gradient = loss, iterations, gradient
        self.epsilon, self.gamma, self.delta, self.step = epsilon, gamma, delta, step

    def mixed(self, a: Weights, v: Heads) -> Heads:
        """Reweight A `iterations` times."""
        m = a @ v
        for _ in range(0 if self.loss == "l2" else self.iterations):
            reweighted = self._factors(m, v) * a
            share = reweighted / reweighted.sum(-1, keepdim=True).clamp_min(torch.finfo(a.dtype).tiny)
            m = (1 - self.step) * m + self.step * (share @ v)
        return m

    def _factors(self, m: Heads, v: Heads) -> Weights:
        """Return w, by distances from differences: by products, small ones would lose their digits."""
        wide = torch.promote_types(v.dtype, torch.float32)
        m, v, narrow = m.to(wide), v.to(wide), v.dtype
        if self.gradient == "released":
            m, v = m.detach(), v.detach()
        distances = torch.cdist(m, v, compute_mode="donot_use_mm_for_euclid_dist") + self.epsilon
        if self.loss == "huber":
            w: Tensor = (self.delta / distances).clamp(max=1.0)
        else:
            w = 1 / distances if self.loss == "l1" else (1 / distances - 1 / self.gamma).clamp(min=self.epsilon)
        return w.to(narrow)


ATTENTION = ProAttention
