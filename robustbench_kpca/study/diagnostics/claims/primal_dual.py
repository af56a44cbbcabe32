"""Claim: a Primal layer's scores solve the dual problem, an SVD of its kernel matrix; the duality gap is 0.

Source: Chen et al. (2023), arXiv:2305.19798, section 3, after Suykens (2016). With e = A
W_e, r = B W_r and N tokens, the primal objective is

    P = (|e Lambda|^2 + |r Lambda|^2) / (2 N) - tr(W_e^T W_r).

Its Lagrangian is stationary where H_e = e Lambda^2 / N, H_r = r Lambda^2 / N, W_e = B^T H_r and W_r = A^T H_e. Putting
these in gives the dual objective, with the kernel matrix K = A B^T,

    D = tr(H_e^T K H_r) - N (|H_e Lambda^-1|^2 + |H_r Lambda^-1|^2) / 2,

which is stationary at the shifted eigenvalue problem K H_r = N H_e Lambda^-2, K^T H_e = N H_r Lambda^-2: the SVD of K /
N, with singular values Lambda^-2. There P = D = 0. Neither problem is convex, so the gap may have either sign.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.attention.primal import PrimalScores
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, by_heads, primal_objective
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.similarity import cosines

_OTHER = (
    "scores of one image compared with the singular vectors of another image's kernel matrix, same layer and head: "
    "they have the same rank and smoothness, but are unrelated to that image's kernel"
)
_FLOOR = 1e-12


class PrimalDual:
    """Measures the duality gap, the residual of the dual problem, and how near scores are to singular vectors."""

    title = "Primal attention solves its dual: an SVD of the kernel matrix, with no duality gap"
    source = "Chen et al. (2023), arXiv:2305.19798, section 3"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "gap": Statistic("|P - D| over the sum of its terms' magnitudes; 0 at a solution", "less"),
        "gap_untrained": Statistic("the same with W_e, W_r and Lambda as initialised"),
        "gap_textbook": Statistic("the same at the SVD of the kernel matrix: rounding error"),
        "primal": Statistic("P, the primal objective"),
        "dual": Statistic("D, the dual objective at H_e = e Lambda^2 / N and H_r = r Lambda^2 / N"),
        "residual": Statistic("distance of K H_r from e and of K^T H_e from r, over their norms; at most 1", "less"),
        "residual_untrained": Statistic("the same with W_e, W_r and Lambda as initialised"),
        "residual_textbook": Statistic("the same at the SVD of the kernel matrix: rounding error"),
        "overlap_e": Statistic(
            "overlap of the e-scores' column space with the leading left singular vectors of K", "more", _OTHER
        ),
        "overlap_r": Statistic(
            "overlap of the r-scores' column space with the leading right singular vectors of K", "more", _OTHER
        ),
        "lambda_error": Statistic(
            "mean |log10| of Lambda^-2, sorted, over the leading singular values of K / N; 0 at a solution"
        ),
        "lambda_error_untrained": Statistic("the same with Lambda as initialised"),
    }
    profiles: ClassVar[Mapping[str, str]] = {
        "singular_values": "leading singular values of K / N",
        "singular_values_lambda": "Lambda^-2, sorted",
        "singular_values_e": "singular values of the e-scores over N",
        "singular_values_r": "singular values of the r-scores over N",
    }

    applies = staticmethod(primal_objective.is_primal)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Solve the dual problem by an SVD, and compare the layer's weights and untrained ones with the solution."""
        scores: PrimalScores = layer.module.scores  # type: ignore[assignment]
        a, b = primal_objective.feature_maps(layer, scores)
        w_e, w_r, lam = primal_objective.learned(layer)
        start = primal_objective.untrained(layer, w_e)
        u, sizes, vh = torch.linalg.svd(a @ b.transpose(-2, -1) / a.shape[-2], full_matrices=False)
        count = min(lam.shape[-1], layer.width, a.shape[-2])  # K has no higher rank
        u_leading, v_leading = u[..., :count], vh[..., :count, :].transpose(-2, -1)
        sizes = torch.maximum(sizes[..., :count], _FLOOR * sizes[..., :1])
        kinds = {
            "": duality(a, b, w_e, w_r, lam),
            "_untrained": duality(a, b, *start),
            "_textbook": duality(a, b, b.transpose(-2, -1) @ v_leading, a.transpose(-2, -1) @ u_leading, sizes.rsqrt()),
        }
        errors = {f"gap{kind}": solution.gap for kind, solution in kinds.items()}
        errors |= {f"residual{kind}": solution.residual for kind, solution in kinds.items()}
        spread = {"singular_values": sizes, "singular_values_lambda": _inverse_squares(lam, count).expand_as(sizes)}
        for name, scored in (("e", a @ w_e), ("r", b @ w_r)):
            spread[f"singular_values_{name}"] = torch.linalg.svdvals(scored)[..., :count] / a.shape[-2]
        return (
            errors
            | spread
            | {
                "primal": kinds[""].primal,
                "dual": kinds[""].dual,
                "overlap_e": cosines(_projector(a @ w_e), u_leading @ u_leading.transpose(-2, -1)),
                "overlap_r": cosines(_projector(b @ w_r), v_leading @ v_leading.transpose(-2, -1)),
                "lambda_error": _decades(_inverse_squares(lam, count), sizes),
                "lambda_error_untrained": _decades(_inverse_squares(start[2], count), sizes),
            }
        )

    def verdict(self, results: Results) -> Verdict:
        """Supported if, in enough heads, gap and residual are small relative to their terms."""
        pairs = zip(results.statistics["gap"].units, results.statistics["residual"].units, strict=True)
        small = [(gap.mean <= thresholds.OBJECTIVE, rest.mean <= thresholds.STATIONARITY) for gap, rest in pairs]
        both, closed = sum(gap and rest for gap, rest in small), sum(gap for gap, _ in small)
        value = {name: statistic.estimate.value for name, statistic in results.statistics.items()}
        why = (
            f"{both} of {len(small)} heads have a duality gap <= {thresholds.OBJECTIVE} and a residual of the dual "
            f"problem <= {thresholds.STATIONARITY} of their terms ({closed} satisfy the condition on the gap); "
            f"{thresholds.HEADS_SHARE:.0%} are needed. Mean gap {value['gap']:.3f} (untrained "
            f"{value['gap_untrained']:.3f}), residual {value['residual']:.3f} (untrained "
            f"{value['residual_untrained']:.3f})"
        )
        return by_heads(both, len(small), why)


@dataclass(frozen=True)
class Duality:
    """Both objectives, their gap relative to its terms, and the relative residual of the dual problem."""

    primal: primal_objective.PerHead
    dual: primal_objective.PerHead
    gap: primal_objective.PerHead
    residual: primal_objective.PerHead


def duality(a: primal_objective.Maps, b: primal_objective.Maps, w_e: Tensor, w_r: Tensor, lam: Tensor) -> Duality:
    """Evaluate P at the weights, and D at the H_e and H_r that the scores imply.

    Args:
        a: A, (images, heads, tokens, width).
        b: B, likewise.
        w_e: W_e, (heads, width, rank) or (images, heads, width, rank).
        w_r: W_r, likewise.
        lam: the diagonal of Lambda, (heads, rank) or (images, heads, rank).
    """
    tokens, square = a.shape[-2], lam.square().unsqueeze(-2)
    e, r = a @ w_e, b @ w_r
    h_e, h_r = e * square / tokens, r * square / tokens
    to_e, to_r = a @ (b.transpose(-2, -1) @ h_r), b @ (a.transpose(-2, -1) @ h_e)  # K H_r and K^T H_e
    spread = ((e.square() + r.square()) * square).sum((-2, -1)) / (2 * tokens)
    trace, cross = (w_e * w_r).sum((-2, -1)), (h_e * to_e).sum((-2, -1))
    primal, dual = spread - trace, cross - spread
    gap = (primal - dual).abs() / (2 * spread + trace.abs() + cross.abs()).clamp_min(1e-300)
    off, parts = torch.zeros_like(spread), torch.zeros_like(spread)
    for implied, expected in ((to_e, e), (to_r, r)):
        off = off + (implied - expected).square().sum((-2, -1))
        parts = parts + (implied.square().sum((-2, -1)).sqrt() + expected.square().sum((-2, -1)).sqrt()).square()
    return Duality(primal, dual, gap, (off / parts.clamp_min(1e-300)).sqrt())


def _inverse_squares(lam: Float[Tensor, "heads rank"], count: int) -> Float[Tensor, "heads count"]:
    """Return Lambda^-2, largest first; the first `count`."""
    inverse: Tensor = 1 / lam.square().clamp_min(_FLOOR)
    return inverse.sort(-1, descending=True).values[..., :count]


def _decades(learned: Tensor, sizes: Tensor) -> primal_objective.PerHead:
    return (learned.log10() - sizes.log10()).abs().mean(-1)


def _projector(x: Float[Tensor, "*heads width rank"]) -> Tensor:
    """Return the orthogonal projector on the column space."""
    u, sizes, _ = torch.linalg.svd(x, full_matrices=False)
    leading = u * (sizes > _FLOOR * sizes[..., :1]).unsqueeze(-2)
    projector: Tensor = leading @ leading.transpose(-2, -1)
    return projector


CLAIM = PrimalDual()
