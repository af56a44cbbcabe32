"""KEP-SVGP attention: a sparse Gaussian process on the kernel's singular functions; each pass draws one sample.

Chen et al. (2024), "Self-Attention through Kernel-Eigen Pair Sparse Variational Gaussian Processes", arXiv:2402.01476.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.primal import Penalised, PrimalScores, Spectrum, ksvd_objective
from robustbench_kpca.attention.shared.heads import Tokens, merge_heads, refuse_options

FORMS = ("sum", "concatenate")

Mean = Float[Tensor, "heads rank channels"]
Factor = Float[Tensor, "heads channels rank rank"]
Inducing = Float[Tensor, "batch heads rank channels"]


def kl_to_prior(mean: Mean, factor: Factor, log_lam: Spectrum) -> Float[Tensor, ""]:
    """Return KL(q || p), summed over heads and channels c, in at least single precision.

    q(u_c) = N(m_c, S_c S_c^T) and p(u_c) = N(0, diag(lam)^-4), lam = exp(log_lam), so that

    KL = 1/2 sum_c (||diag(lam)^2 S_c||_F^2 + ||diag(lam)^2 m_c||^2 - rank - 4 sum_i log lam_i - 2 sum_i log S_c,ii)

    The prior is inferred. At a kernel SVD K = U Sigma V^T with Sigma = diag(lam)^-2, where J = 0, the scores times
    lam^2 are the singular functions U up to a constant, and f = U u has the covariance K K^T = U Sigma^2 U^T when that
    of u is Sigma^2.

    Args:
        mean: m, one column per channel.
        factor: S, lower triangular with a positive diagonal.
        log_lam: log of lam, per head.
    """
    wide = torch.promote_types(mean.dtype, torch.float32)
    mean, factor, log_lam = mean.to(wide), factor.to(wide), log_lam.to(wide)
    heads, rank, channels = mean.shape
    precision = (2 * log_lam).exp()  # of Sigma, the square root of the prior's covariance
    trace = (precision[:, None, :, None] * factor).square().sum()
    square = (precision[:, :, None] * mean).square().sum()
    log_ratio = -4 * channels * log_lam.sum() - 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum()
    return (trace + square - heads * channels * rank + log_ratio) / 2


class KEPSVGPAttention(Penalised):
    """out = proj([mix(F_h) for every head h]), F = (scores diag(lam)^2) (m + S eps), eps ~ N(0, I), always drawn.

    The scores are those of primal attention: e + r (`sum`), or e above r (`concatenate`), where a linear layer `merge`
    maps the 2N rows of F back to N. F has `rank` channels. u = m + S eps is drawn once for each sequence, head and
    channel; all tokens share it. m, S and lam are parameters: `mean`; `lower`, the part of S below the diagonal, and
    `log_scale`, the logarithm of its diagonal; `log_lam`. q is initially the prior, where the KL term is 0.

    While training, `penalties` holds "ksvd" (J^2 with lam for Lambda) and "kl"; in evaluation it is empty.

    Args:
        tokens: the number of tokens, class token included.
        rank: s, the number of singular functions, and of channels.
        rank_multi: m; the weights use at most rank * rank_multi of the tokens.
        form: "sum" or "concatenate".

    The others are what timm >= 1.0.23 passes to an `attn_layer`.
    """

    stochastic = True
    """Passes differ, so attacks average gradients, and evaluations average logits, over several passes."""

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
        tokens: int,
        rank: int = 10,
        rank_multi: int = 10,
        form: str = "sum",
    ) -> None:
        super().__init__()
        refuse_options(self, attn_drop=attn_drop, qk_norm=qk_norm, scale_norm=scale_norm)
        if form not in FORMS:
            raise BadInputError(f"form = '{form}'", expected=" or ".join(f"'{choice}'" for choice in FORMS))
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.form = form
        self.scores = PrimalScores(
            dim, num_heads, qkv_bias=qkv_bias, tokens=tokens, rank=rank, rank_multi=rank_multi, **place
        )
        self.log_lam = nn.Parameter(torch.rand(num_heads, rank, **place))
        self.mean = nn.Parameter(torch.zeros(num_heads, rank, rank, **place))
        self.log_scale = nn.Parameter(-2 * self.log_lam.detach().unsqueeze(1).repeat(1, rank, 1))
        self.lower = nn.Parameter(torch.zeros(num_heads, rank, rank, rank, **place))
        self.merge = nn.Linear(2 * tokens, tokens, **place) if form == "concatenate" else None
        self.mix = nn.Linear(rank, dim // num_heads, **place)
        self.proj = nn.Linear(dim, dim, bias=proj_bias, **place)
        self.proj_drop = nn.Dropout(proj_drop)
        self.fixed_noise: Tensor | None = None  # eps, (batch, heads, channels, rank), in place of the draw

    def factor(self) -> Factor:
        """Return S, in at least single precision."""
        wide = torch.promote_types(self.lower.dtype, torch.float32)
        return self.lower.to(wide).tril(-1) + self.log_scale.to(wide).exp().diag_embed()

    def sample(self, factor: Factor, batch: int) -> Inducing:
        """Return u = m + S eps for every sequence."""
        eps = self.fixed_noise
        if eps is None:
            eps = torch.randn(batch, *self.log_scale.shape, device=factor.device, dtype=factor.dtype)
        return self.mean + (factor @ eps.to(factor.dtype).unsqueeze(-1)).squeeze(-1).transpose(-2, -1)

    def forward(self, x: Tokens, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tokens:
        """Map tokens to tokens; masks are refused, since vision models need none."""
        if attn_mask is not None or is_causal:
            raise BadInputError(f"a mask for {type(self).__name__}", expected="no mask")
        e, r = self.scores(x)
        factor = self.factor()
        functions = (e + r if self.merge is None else torch.cat([e, r], -2)) * (2 * self.log_lam).exp().unsqueeze(-2)
        drawn = functions @ self.sample(factor, len(x)).to(functions.dtype)
        if self.merge is not None:
            drawn = self.merge(drawn.transpose(-2, -1)).transpose(-2, -1)
        mixed = merge_heads(self.mix(drawn))
        out: Tensor = self.proj_drop(self.proj(mixed))
        self.penalties = {}
        if self.training:
            objective = ksvd_objective(e, r, self.scores.w_e, self.scores.w_r, self.log_lam.exp())
            kl = kl_to_prior(self.mean, factor, self.log_lam)
            self.penalties = {"ksvd": objective.mean().square(), "kl": kl}
        return out


ATTENTION = KEPSVGPAttention
