"""Attention whose weights A are written out, so that a variant changes its scores, or what is made of A and V."""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.shared.heads import Heads, KeyMask, MultiHeadAttention

Weights = Float[Tensor, "batch heads tokens tokens"]
Mixing = Literal["own", "identity"]
Gradient = Literal["released", "restored"]
"""`released`: gradients are stopped where the authors' code stops them; `restored`: they are not. Forward is equal."""


def require_choice(option: str, value: str, kind: Any) -> None:
    """Refuse a value that is none of a `Literal`'s."""
    if value not in get_args(kind):
        choices = " or ".join(f"'{choice}'" for choice in get_args(kind))
        raise BadInputError(f"{option} = {value!r}", expected=choices)


def require_count(option: str, value: int, least: int = 0) -> None:
    """Refuse what is no whole number, or less than `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInputError(f"{option} = {value!r}", expected=f"a whole number, at least {least}")


def require_positive(option: str, value: float, *, or_zero: bool = False) -> None:
    """Refuse what is no finite number above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (0 < value < float("inf") or (or_zero and value == 0)):
        raise BadInputError(f"{option} = {value!r}", expected="a number above 0" + (", or 0" if or_zero else ""))


def hidden(scores: Weights, *, causal: bool, mask: KeyMask | None) -> Weights:
    """Set the scores of later tokens and of padding to minus infinity."""
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


class WeightedAttention(MultiHeadAttention):
    """out = proj(mixed(A, V)), A = softmax(scores(Q, K)); as it stands, softmax attention.

    Args:
        dim: width of the tokens.
        num_heads: number of heads.
        mixing: `own`; or `identity`, where A is the unit matrix: the twin without mixing, with the same parameters.
        **options: options of `MultiHeadAttention`.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, mixing: Mixing = "own", **options: Any) -> None:
        require_choice("mixing", mixing, Mixing)
        super().__init__(dim, num_heads, **options)
        self.mixing = mixing

    def scores(self, q: Heads, k: Heads) -> Weights:
        """Return s Q K^T, with s = D^(-1/2)."""
        scores: Weights = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        return scores

    def weights(self, q: Heads, k: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Weights:
        """Return A before dropout."""
        if self.mixing == "identity":
            return torch.eye(k.shape[-2], device=k.device, dtype=k.dtype).expand(*k.shape[:-1], -1)
        scores = hidden(self.scores(q, k), causal=causal, mask=mask)
        return scores.softmax(-1, dtype=torch.promote_types(k.dtype, torch.float32)).to(k.dtype)

    def mixed(self, a: Weights, v: Heads) -> Heads:
        """Return A V."""
        return a @ v

    def attend(self, q: Heads, k: Heads, v: Heads, *, causal: bool = False, mask: KeyMask | None = None) -> Heads:
        """Mix the values."""
        return self.mixed(self.attn_drop(self.weights(q, k, causal=causal, mask=mask)), v)
