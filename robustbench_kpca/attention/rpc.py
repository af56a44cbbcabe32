"""RPC attention: Principal Attention Pursuit, n alternating steps that split the keys into low-rank L and sparse S.

Teo & Nguyen (2024), arXiv:2406.13762, section 3, Definition 1 and Algorithm 1. The defaults reproduce the authors'
released code, which departs from the paper in the threshold and in the width that enters mu (docs/decisions/0004).
"""

from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention.symmetric import Heads, SymmetricAttention
from robustbench_kpca.errors import BadInputError

Threshold = Literal["lam*mu", "lam/mu"]
MuWidth = Literal["embed", "head"]
Observer = Callable[[int, Tensor, Tensor, Tensor], None]
"""Called after every iteration with (iteration, K, L, S)."""

_TINY = 1e-12  # keeps mu finite where all keys of a head are zero


def principal_attention_pursuit(
    k: Heads,
    v: Heads,
    *,
    iterations: int,
    lam: float,
    width: int,
    threshold: Threshold = "lam*mu",
    observer: Observer | None = None,
) -> Heads:
    """Return L after `iterations` steps, in the scaled dual form U = Y / mu.

    mu = N * width / (4 ||K||_1) per image and head; L = S = U = 0; then, `iterations` times,

        S <- shrink(K - L + U; t),  t = lam * mu (released code) or lam / mu (paper)
        M <- K - S - U
        L <- softmax(M M^T / sqrt(D)) V
        U <- U + K - L - S

    with shrink(x; t) = sign(x) max(|x| - t, 0). The gradient flows through mu, as in the released code.

    Args:
        k: keys, (batch, heads, tokens N, head width D).
        v: values, the same shape.
        iterations: n >= 1.
        lam: lambda > 0; `inf` switches the sparse part off.
        width: C (the released code) or D (the paper), see `MuWidth`.
        threshold: which of the two rules for t.
        observer: shown every iterate.

    """
    tokens = k.shape[-2]
    wide = k.to(torch.promote_types(k.dtype, torch.float32))  # mu needs at least single precision
    mu = tokens * width / (4 * wide.abs().sum((-2, -1), keepdim=True).clamp_min(_TINY))
    bound = (lam * mu if threshold == "lam*mu" else lam / mu).to(k.dtype)
    if lam == float("inf"):
        bound = bound.detach()  # a constant, where inf times the gradient of mu would be NaN
    low_rank = dual = torch.zeros_like(k)
    for iteration in range(iterations):
        residual = k - low_rank + dual
        sparse = F.relu(residual - bound) - F.relu(-residual - bound)
        inner = k - sparse - dual
        low_rank = F.scaled_dot_product_attention(inner, inner, v)
        dual = dual + k - low_rank - sparse
        if observer is not None:
            observer(iteration, k, low_rank, sparse)
    return low_rank


class RPCAttention(SymmetricAttention):
    """Symmetric attention whose mixing step is Principal Attention Pursuit; it adds no parameter."""

    def __init__(
        self,
        dim: int,
        *args: Any,
        iterations: int = 4,
        lam: float = 4.0,
        threshold: str = "lam*mu",
        mu_width: str = "embed",
        **kwargs: Any,
    ) -> None:
        super().__init__(dim, *args, **kwargs)
        if iterations < 1 or not lam > 0:
            raise BadInputError(f"iterations = {iterations}, lam = {lam}", expected="iterations >= 1 and lam > 0")
        if threshold not in get_args(Threshold) or mu_width not in get_args(MuWidth):
            raise BadInputError(
                f"threshold = '{threshold}', mu_width = '{mu_width}'",
                expected="threshold 'lam*mu' or 'lam/mu' and mu_width 'embed' or 'head'",
            )
        self.iterations = iterations
        self.lam = lam
        self.threshold = cast("Threshold", threshold)
        self.width = dim if mu_width == "embed" else dim // self.num_heads
        self.observer: Observer | None = None

    def attend(self, k: Heads, v: Heads) -> Heads:
        """Run the pursuit on one layer's keys and values."""
        return principal_attention_pursuit(
            k,
            v,
            iterations=self.iterations,
            lam=self.lam,
            width=self.width,
            threshold=self.threshold,
            observer=self.observer,
        )


ATTENTION = RPCAttention
