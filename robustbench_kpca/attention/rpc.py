"""RPC attention: Principal Attention Pursuit, n iterations that split the keys into a low-rank L and a sparse S.

Teo & Nguyen (2024), arXiv:2406.13762, section 3, Definition 1 and Algorithm 1.

- Paper: S is shrunk by lam / mu, with mu = N D / (4 ||K||_1) and D the width of one head.
- Released code: S is shrunk by lam * mu, with the embedding width C in mu in place of D. Both have K - S - Y / mu in
  the L step, where textbook ADMM has + Y / mu.
- Here: the released code is the default, because results can only have come from code; `threshold`, `mu_width` and
  `dual_sign` give the other forms (docs/decisions/0004).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.shared.heads import Heads, KeyMask
from robustbench_kpca.attention.symmetric import SymmetricAttention

Threshold = Literal["lam*mu", "lam/mu"]
MuWidth = Literal["embed", "head"]
MuSpan = Literal["past", "window"]
Scale = Float[Tensor, "batch heads #tokens 1"]

TINY = 1e-12
"""Least ||K||_1 in mu, so that mu is finite where all keys of a head are zero."""


@dataclass(frozen=True)
class Iterate:
    """The tensors of one iteration of the pursuit, for an observer.

    Attributes:
        iteration: from 1; 0 is attention without a pursuit.
        k: keys.
        v: values.
        query: the left argument of the softmax: M in the symmetric form, Q in the asymmetric one.
        inner: M, the right argument of the softmax.
        low_rank: L.
        sparse: S.
        mask: the keys that are no padding; None: all.
    """

    iteration: int
    k: Heads
    v: Heads
    query: Heads
    inner: Heads
    low_rank: Heads
    sparse: Heads
    mask: KeyMask | None = None


Observer = Callable[[Iterate], None]


@dataclass(frozen=True)
class Pursuit:
    """Principal Attention Pursuit with its options.

    Attributes:
        iterations: n; 0 is attention without a pursuit.
        lam: lambda > 0; `inf` switches the sparse part off.
        threshold: shrink by lam * mu (released code) or lam / mu (paper).
        mu_width: the width in mu: C, all heads together (released code), or D, one head (paper).
        mu_span: in causal attention: `past`, mu_t from the keys up to t; or `window`, one mu from all keys, as in the
            paper, so that earlier tokens depend on later ones.
        dual_sign: sign of Y / mu in the L step: -1 (released code and paper as printed) or +1 (textbook ADMM).
    """

    iterations: int = 4
    lam: float = 4.0
    threshold: Threshold = "lam*mu"
    mu_width: MuWidth = "embed"
    mu_span: MuSpan = "past"
    dual_sign: int = -1

    def __post_init__(self) -> None:
        if self.iterations < 0 or not self.lam > 0:
            raise BadInputError(
                f"iterations = {self.iterations}, lam = {self.lam}", expected="iterations >= 0 and lam > 0"
            )
        for option, kind in (("threshold", Threshold), ("mu_width", MuWidth), ("mu_span", MuSpan)):
            if getattr(self, option) not in get_args(kind):
                choices = " or ".join(f"'{choice}'" for choice in get_args(kind))
                raise BadInputError(f"{option} = '{getattr(self, option)}'", expected=choices)
        if self.dual_sign not in (-1, 1):
            raise BadInputError(f"dual_sign = {self.dual_sign}", expected="-1 or 1")

    @classmethod
    def pop(cls, options: dict[str, Any]) -> "Pursuit":
        """Remove the options of the pursuit from an attention's options; return a pursuit with them."""
        return cls(**{field.name: options.pop(field.name) for field in fields(cls) if field.name in options})

    def __call__(
        self,
        k: Heads,
        v: Heads,
        query: Heads | None = None,
        *,
        causal: bool = False,
        mask: KeyMask | None = None,
        dropout: float = 0.0,
        observer: Observer | None = None,
    ) -> Heads:
        """Return L after n iterations, in the scaled dual form U = Y / mu.

        L = S = U = 0; then, n times, with t = lam * mu or lam / mu and shrink(x; t) = sign(x) max(|x| - t, 0),

            S <- shrink(K - L + U; t)
            M <- K - S - U                             (dual_sign = +1: K - S + U)
            L <- softmax(M M^T / sqrt(D)) V            (asymmetric form: softmax(Q M^T / sqrt(D)) V)
            U <- U + K - L - S

        The code uses clip(x; t) = x - shrink(x; t), x limited to [-t, t], in place of S. As in the released code, mu
        is part of the gradient, and dropout is used in the last iteration only.

        Args:
            k: keys, (batch, heads, tokens N, head width D).
            v: values, the same shape.
            query: Q of the asymmetric form (appendix E.10); the symmetric form has none.
            causal: token t attends to tokens up to t.
            mask: the keys that are no padding; the others are not attended to and have no part in mu.
            dropout: dropout of attention weights.
            observer: called with every iterate.
        """
        if not self.iterations:
            return self._unpursued(k, v, query, causal, mask=mask, dropout=dropout, observer=observer)
        bound = self.bound(k, causal=causal, mask=mask)
        low_rank = dual = None
        for iteration in range(1, self.iterations + 1):
            carried, inner = _split(k, low_rank, dual, bound, self.dual_sign)
            queries = inner if query is None else query
            mixed = F.scaled_dot_product_attention(
                queries,
                inner,
                v,
                attn_mask=mask,
                dropout_p=dropout if iteration == self.iterations else 0.0,
                is_causal=causal,
            )
            if observer is not None:
                sparse = _sparse(k, low_rank, dual, bound)
                observer(Iterate(iteration, k, v, queries, inner=inner, low_rank=mixed, sparse=sparse, mask=mask))
            low_rank, dual = mixed, carried - mixed
        assert low_rank is not None
        return low_rank

    def bound(self, k: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Scale:
        """Return the shrinkage t, lam * mu or lam / mu, in the keys' precision."""
        mu = self.mu(k, causal=causal, mask=mask)
        bound = (self.lam * mu if self.threshold == "lam*mu" else self.lam / mu).to(k.dtype)
        # a constant for lam = inf, where inf times the gradient of mu would be NaN
        return bound.detach() if self.lam == float("inf") else bound

    def mu(self, k: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Scale:
        """Return mu = N * width / (4 ||K||_1), (batch, heads, 1, 1), in at least single precision.

        With `mask`, N and K are those of the keys that are no padding.
        Causal over the past: mu_t = t * width / (4 sum_{j <= t} ||k_j||_1), (batch, heads, tokens, 1).
        """
        width = k.shape[-1] * (k.shape[-3] if self.mu_width == "embed" else 1)
        norms = k.to(torch.promote_types(k.dtype, torch.float32)).abs().sum(-1, keepdim=True)
        if causal and self.mu_span == "past":
            count = torch.arange(1, k.shape[-2] + 1, device=k.device, dtype=norms.dtype).unsqueeze(-1)
            return count * width / (4 * norms.cumsum(-2).clamp_min(TINY))
        if mask is not None:
            present = mask.transpose(-2, -1).to(norms.dtype)
            return present.sum(-2, keepdim=True) * width / (4 * (norms * present).sum(-2, keepdim=True).clamp_min(TINY))
        return k.shape[-2] * width / (4 * norms.sum(-2, keepdim=True).clamp_min(TINY))

    def _unpursued(
        self,
        k: Heads,
        v: Heads,
        query: Heads | None,
        causal: bool,
        mask: KeyMask | None,
        dropout: float,
        observer: Observer | None,
    ) -> Heads:
        queries = k if query is None else query
        out = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        if observer is not None:
            observer(Iterate(0, k, v, queries, inner=k, low_rank=out, sparse=torch.zeros_like(k), mask=mask))
        return out


def _argument(k: Heads, low_rank: Heads | None, dual: Heads | None) -> Heads:
    """Return K - L + U; the first iteration has no L and U."""
    return k if low_rank is None or dual is None else (k - low_rank).add_(dual)


def _sparse(k: Heads, low_rank: Heads | None, dual: Heads | None, bound: Scale) -> Heads:
    argument = _argument(k, low_rank, dual)
    return argument - argument.clamp(-bound, bound)


def _split(k: Heads, low_rank: Heads | None, dual: Heads | None, bound: Scale, dual_sign: int) -> tuple[Heads, Heads]:
    """Return K + U - S = L + clip(K - L + U; t), and M."""
    if dual_sign > 0:
        carried: Heads = _Carried.apply(k, low_rank, dual, bound)
        return carried, carried
    split: tuple[Heads, Heads] = _CarriedAndInner.apply(k, low_rank, dual, bound)
    return split


class _Carried(torch.autograd.Function):
    """C = L + c with c = clip(K - L + U; t), x limited to [-t, t]. Only c is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, low_rank: Tensor | None, dual: Tensor | None, bound: Tensor) -> Tensor:
        ctx.first = low_rank is None
        clipped = _clipped(k, low_rank, dual, bound)
        ctx.save_for_backward(clipped, bound)
        return clipped.clone() if low_rank is None else low_rank + clipped

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inside, outside, of_bound = _through_clip(gradients[0], *ctx.saved_tensors)
        return (inside, None, None, of_bound) if ctx.first else (inside, outside, inside, of_bound)


class _CarriedAndInner(torch.autograd.Function):
    """C = L + c and M = C - 2 U, with c = clip(K - L + U; t). Only c is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, k: Tensor, low_rank: Tensor | None, dual: Tensor | None, bound: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.first = low_rank is None
        clipped = _clipped(k, low_rank, dual, bound)
        ctx.save_for_backward(clipped, bound)
        if low_rank is None or dual is None:
            return clipped.clone(), clipped.clone()
        carried = low_rank + clipped
        return carried, torch.sub(carried, dual, alpha=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        of_carried, of_inner = gradients
        if of_inner is None:  # nothing depends on L, so nothing on C
            return None, None, None, None
        gradient = of_inner if of_carried is None else of_carried + of_inner  # nothing depends on the last C
        inside, outside, of_bound = _through_clip(gradient, *ctx.saved_tensors)
        if ctx.first:
            return inside, None, None, of_bound
        return inside, outside, (-2 * of_inner).add_(inside), of_bound


def _clipped(k: Tensor, low_rank: Tensor | None, dual: Tensor | None, bound: Tensor) -> Tensor:
    if low_rank is None:
        return k.clamp(-bound, bound)
    return _argument(k, low_rank, dual).clamp_(-bound, bound)


def _through_clip(gradient: Tensor, clipped: Tensor, bound: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient where c = K - L + U, the gradient elsewhere, and that of t.

    Where and with which sign it is clipped is constant almost everywhere, so this may itself be differentiated.
    """
    inside = gradient.masked_fill(clipped.abs() >= bound, 0.0)
    outside = gradient - inside
    return inside, outside, (outside * clipped.sign()).sum_to_size(bound.shape)


class RPCAttention(SymmetricAttention):
    """Symmetric attention whose mixing step is Principal Attention Pursuit; it adds no parameter.

    Takes the options of `SymmetricAttention` and of `Pursuit`. If `observer` is set, it is called with every iterate.
    """

    off: ClassVar[str] = "lam=inf"

    def __init__(self, dim: int, num_heads: int = 8, **options: Any) -> None:
        pursuit = Pursuit.pop(options)
        super().__init__(dim, num_heads, **options)
        self.pursuit = pursuit
        self.observer: Observer | None = None

    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:  # noqa: ARG002
        """Run the pursuit on one layer's keys and values."""
        return self.pursuit(k, v, causal=causal, mask=mask, dropout=self.dropout, observer=self.observer)


ATTENTION = RPCAttention
