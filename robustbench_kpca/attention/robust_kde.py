"""Robust kernel density attention: tokens far from all others in the kernel's space weigh less (Huber, Hampel).

Han et al. (2023), "Designing Robust Transformers using Robust Kernel Density Estimation", arXiv:2210.05794. Their
released code has a sign wrong, so that outliers weigh more: `form` chooses between the two.
"""

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention.kde import LEAST, KDEAttention
from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.attention.shared.weights import Weights, require_choice, require_count, require_positive

Loss = Literal["huber", "hampel"]
Form = Literal["released", "textbook"]
Points = Float[Tensor, "batch heads tokens width"]
OfTokens = Float[Tensor, "batch heads tokens"]

FLOOR = 0.01  # what the released code puts in place of a weight of 0


def influence(r: OfTokens, loss: Loss, a: float) -> OfTokens:
    """Return psi(r) / r: min(1, a / r) of Huber; of Hampel, with b = 2a and c = 3a, 0.01 from c on."""
    if loss == "huber":
        return (a / r).clamp(max=1.0)
    falling = (3 * a - r) / r
    return torch.where(r < a, 1.0, torch.where(r < 2 * a, a / r, torch.where(r < 3 * a, falling, FLOOR)))


def token_weights(points: Points, *, loss: Loss, form: Form, a: float, iterations: int, scale: float) -> OfTokens:
    """Return weights w of the tokens that sum to 1, by iterated reweighting from w = 1 / N, in double precision.

        kappa_ij = exp(-scale ||x_i - x_j||^2)
        r_i^2 = 1 - 2 sum_j w_j kappa_ij + sum_jl w_j w_l kappa_jl          textbook
        r_i^2 = 1 + sum_j w_j kappa_ij + sum_jl w_j w_l kappa_jl            released, so that r_i >= 1
        w_i <- psi(r_i) / r_i, then divided by their sum

    The released code averages w over batch and heads before a second iteration; this does not.
    """
    points = points.double()
    square = points.square().sum(-1)
    distances = square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * points @ points.transpose(-2, -1)
    kappa = (-scale * distances.clamp_min(0)).exp()
    w = torch.full_like(square, 1 / square.shape[-1])
    for _ in range(iterations):
        mass = (kappa @ w.unsqueeze(-1)).squeeze(-1)
        squared = 1 + (1 if form == "released" else -2) * mass + (w * mass).sum(-1, keepdim=True)
        w = influence(squared.clamp_min(LEAST).sqrt(), loss, a)
        w = w / w.sum(-1, keepdim=True)
    return w


class RobustKDEAttention(KDEAttention):
    """out = proj(A V) with A_ij = u_j exp(g_ij) / sum_l w_l exp(g_il), g the scores of `kde`.

    u are the weights of tokens by key and value together, w those by key alone, so that rows do not sum to 1. As
    released, Hampel with a <= 1/3 is `kde` exactly, and Huber does not depend on a <= 1. With 0 iterations, both are.
    """

    off: ClassVar[str] = "iterations=0"

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        loss: Loss = "huber",
        form: Form = "released",
        a: float = 0.2,
        iterations: int = 1,
        **options: Any,
    ) -> None:
        require_choice("loss", loss, Loss)
        require_choice("form", form, Form)
        require_positive("a", a)
        require_count("iterations", iterations)
        super().__init__(dim, num_heads, **options)
        self.loss: Loss = loss
        self.form: Form = form
        self.a, self.iterations = a, iterations

    def attend(self, q: Heads, k: Heads, v: Heads) -> Heads:  # type: ignore[override] # of tokens that all see all
        """Mix the values by weighted kernels."""
        if self.mixing == "identity":
            return self.mixed(self.attn_drop(self.weights(q, k)), v)
        of_keys, of_both = self._token_weights(k, v)
        a: Weights = (self.scores(q, k) + of_keys.unsqueeze(-2)).softmax(-1)
        return self.mixed(self.attn_drop(a * (of_both - of_keys).exp().unsqueeze(-2)), v)

    def _token_weights(self, k: Heads, v: Heads) -> tuple[OfTokens, OfTokens]:
        """Return log w and log u."""
        keys = F.normalize(k, dim=-1, eps=LEAST)
        how: dict[str, Any] = {"loss": self.loss, "form": self.form, "a": self.a, "iterations": self.iterations}
        pair = (token_weights(points, scale=k.shape[-1] ** -0.5, **how) for points in (keys, torch.cat([keys, v], -1)))
        of_keys, of_both = (w.log().to(k.dtype) for w in pair)
        return of_keys, of_both


ATTENTION = RobustKDEAttention
