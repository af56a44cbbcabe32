"""Primal attention: the kernel is represented by its leading singular functions; no N x N matrix is built.

Chen et al. (2023), "Primal-Attention: Self-attention through Asymmetric Kernel SVD in Primal Representation",
arXiv:2305.19798. Cosine kernel and data-dependent weights.

- Paper: the regulariser is J^2 with J = 1/2 e^T Lambda e + 1/2 r^T Lambda r - tr(W_e^T W_r).
- Released code: J has ||Lambda e||^2, so the paper's Lambda is the square of this one, and the trace is of the
  parameters, not of the data-dependent weights.
- Here: as in the released code. J is averaged over the batch before it is squared, as the authors do for pictures, and
  after it in the causal form, as they do for language.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.shared.heads import (
    Heads,
    Tokens,
    merge_heads,
    refuse_options,
    require_heads,
    split_heads,
)

Scores = Float[Tensor, "batch heads tokens rank"]
Weights = Float[Tensor, "heads width rank"]
Spectrum = Float[Tensor, "heads rank"]

_EPS = 1e-6  # least length that vectors are divided by, so that the gradient at zero is finite


def feature_map(u: Heads, *, causal: bool = False) -> Heads:
    """Return phi(u) = u / max(||u||, 1e-6); with `causal`, u is first replaced by its running mean over the tokens.

    Computed in at least single precision, returned in that of `u`.
    """
    wide = u.to(torch.promote_types(u.dtype, torch.float32))
    if causal:
        count = torch.arange(1, u.shape[-2] + 1, device=u.device, dtype=wide.dtype)
        wide = wide.cumsum(-2) / count.unsqueeze(-1)
    return F.normalize(wide, dim=-1, eps=_EPS).to(u.dtype)


def ksvd_objective(e: Scores, r: Scores, w_e: Weights, w_r: Weights, lam: Spectrum) -> Float[Tensor, " batch"]:
    """Return J of every sequence, in at least single precision; the regulariser is J^2.

    J = 1/2 mean_{h,n} ||Lambda_h e_hn||^2 + 1/2 mean_{h,n} ||Lambda_h r_hn||^2 - mean_h tr(W_e,h^T W_r,h)

    So the released code has it. The paper's Lambda, which is positive, is the square of this one.

    J = 0 wherever its gradient with respect to W_e and W_r is zero, which is a kernel SVD: with e = A W_e, r = B W_r
    and the SVD A B^T / N = U S V^T, such a point is W_e = B^T V, W_r = A^T U, Lambda = S^(-1/2).

    Args:
        e: left scores.
        r: right scores.
        w_e: the parameters W_e that e is computed from.
        w_r: the same for r.
        lam: the diagonal of Lambda, per head.
    """
    wide = torch.promote_types(e.dtype, torch.float32)
    e, r, w_e, w_r, lam = (tensor.to(wide) for tensor in (e, r, w_e, w_r, lam))
    spread = sum((scores * lam.unsqueeze(-2)).square().sum(-1).mean((1, 2)) for scores in (e, r))
    objective: Tensor = spread / 2 - (w_e * w_r).sum((1, 2)).mean()
    return objective


class PrimalScores(nn.Module):
    """Scores e = phi(q) W_e|X and r = phi(k) W_r|X of every head, with (q, k) = qk(x).

    W_e|X = X_h^T W_e, where X_h is the head's slice of p = min(tokens, rank * rank_multi) of the tokens, evenly spaced,
    and W_e, W_r (`w_e`, `w_r`) have shape (heads, p, rank), so that a layer fits one number of tokens only. In the
    causal form, tokens = None, W_e|X = W_e of shape (heads, head width, rank), and any number of tokens fits.

    As in the released code, `orthogonal_` takes heads as rows: initially every head has Frobenius norm 1, and its
    columns are not orthonormal.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool,
        tokens: int | None,
        rank: int,
        rank_multi: int,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        require_heads(dim, num_heads)
        if min(rank, rank_multi, 1 if tokens is None else tokens) < 1:
            problem = f"tokens = {tokens}, rank = {rank}, rank_multi = {rank_multi}"
            raise BadInputError(problem, expected="whole numbers, at least 1")
        self.num_heads = num_heads
        self.tokens = tokens
        width, indices = dim // num_heads, list[int]()
        if tokens is not None:
            width = min(tokens, rank * rank_multi)
            indices = [i * (tokens - 1) // max(width - 1, 1) for i in range(width)]
        self.landmarks: Tensor
        self.register_buffer("landmarks", torch.tensor(indices, dtype=torch.long, device=device), persistent=False)
        self.qk = nn.Linear(dim, 2 * dim, bias=qkv_bias, device=device, dtype=dtype)
        self.w_e, self.w_r = (_orthogonal(num_heads, width, rank, like=self.qk.weight) for _ in range(2))

    def forward(self, x: Tokens) -> tuple[Scores, Scores]:
        """Map tokens to (e, r)."""
        tokens = x.shape[1]
        if self.tokens not in (None, tokens):
            raise BadInputError(f"{tokens} tokens", expected=f"{self.tokens}", fix=f"build it with tokens={tokens}")
        q, k = split_heads(self.qk(x), 2, self.num_heads)
        if self.tokens is None:
            return feature_map(q, causal=True) @ self.w_e, feature_map(k, causal=True) @ self.w_r
        chosen = x if len(self.landmarks) == tokens else x[:, self.landmarks]
        data = chosen.unflatten(-1, (self.num_heads, -1)).permute(0, 2, 3, 1)
        return feature_map(q) @ (data @ self.w_e), feature_map(k) @ (data @ self.w_r)


def _orthogonal(*shape: int, like: Tensor) -> nn.Parameter:
    precision = torch.promote_types(like.dtype, torch.float32)  # the QR decomposition needs it
    return nn.Parameter(nn.init.orthogonal_(torch.empty(shape, device=like.device, dtype=precision)).to(like.dtype))


class Penalised(nn.Module):
    """Attention with regularisers: `penalties` are those of the last batch in training mode, else empty."""

    def __init__(self, *shape: Any, **options: Any) -> None:
        super().__init__(*shape, **options)
        self.penalties: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> "Penalised":
        """Switch between training and evaluation mode; the penalties of the last batch are removed."""
        self.penalties = {}
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the penalties, whose graph cannot be copied."""
        return self.__dict__ | {"penalties": {}}


class PrimalAttention(Penalised):
    """out = proj([mix([e_h; r_h]) for every head h]), with `mix` of width 2 rank -> head width shared by the heads.

    There is no value projection. `lam`, (heads, rank), is the diagonal of Lambda; only the regulariser uses it. In
    training mode `penalties["ksvd"]` is the regulariser of the last batch: J^2 with J the mean over the batch or, in
    the causal form, the mean of J^2, as the authors do for language. In evaluation mode `penalties` is empty.

    Args:
        tokens: the number of tokens, class token included; the causal form does not need it.
        rank: s, the number of singular functions.
        rank_multi: m; the weights use at most rank * rank_multi of the tokens.
        causal: the form in which a token does not depend on later ones.

    The others are what timm >= 1.0.23 passes to an `attn_layer`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Any = None,  # noqa: ARG002 (timm passes it; without qk_norm it has no use)
        device: Any = None,
        dtype: Any = None,
        *,
        tokens: int | None = None,
        rank: int = 20,
        rank_multi: int = 10,
        causal: bool = False,
    ) -> None:
        super().__init__()
        refuse_options(self, attn_drop=attn_drop, qk_norm=qk_norm, scale_norm=scale_norm)
        if tokens is None and not causal:
            raise BadInputError("primal attention without `tokens`", expected="their number, or causal=True")
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        size = None if causal else tokens
        self.num_heads = num_heads
        self.causal = causal
        self.scores = PrimalScores(
            dim, num_heads, qkv_bias=qkv_bias, tokens=size, rank=rank, rank_multi=rank_multi, **place
        )
        self.lam = nn.Parameter(torch.rand(num_heads, rank, **place))
        self.mix = nn.Linear(2 * rank, dim // num_heads, **place)
        self.proj = nn.Linear(dim, dim, bias=proj_bias, **place)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tokens, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tokens:
        """Map tokens to tokens; masks are refused. Whether it is causal is an option of the layer, not of the call."""
        if attn_mask is not None or (is_causal and not self.causal):
            raise BadInputError(f"a mask for {type(self).__name__}", expected="none, or a layer built with causal=True")
        e, r = self.scores(x)
        mixed = self.mix(torch.cat([e, r], -1))
        out: Tensor = self.proj_drop(self.proj(merge_heads(mixed)))
        self.penalties = {"ksvd": self._regulariser(e, r)} if self.training else {}
        return out

    def _regulariser(self, e: Scores, r: Scores) -> Float[Tensor, ""]:
        objective = ksvd_objective(e, r, self.scores.w_e, self.scores.w_r, self.lam)
        return objective.square().mean() if self.causal else objective.mean().square()


ATTENTION = PrimalAttention
