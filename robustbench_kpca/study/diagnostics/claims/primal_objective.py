"""Claim: a Primal layer is the kernel SVD from which it is derived: J = 0, and the gradient of J is 0.

Source: Chen et al. (2023), arXiv:2305.19798: at a stationary point of the KSVD problem the objective J is 0, so
training adds J^2 to the loss. The converse is false: J is a difference of terms and is 0 also at points that are not an
SVD.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.attention.kep_svgp import KEPSVGPAttention
from robustbench_kpca.attention.primal import PrimalAttention, PrimalScores, feature_map
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, by_heads
from robustbench_kpca.study.diagnostics.layer import Layer

PerHead = Float[Tensor, "images heads"]
Maps = Float[Tensor, "images heads tokens width"]
Weights = Float[Tensor, "heads width rank"]


def is_primal(layer: Layer) -> bool:
    """Return whether a layer is attention in primal form, which has this objective."""
    return isinstance(layer.module, (PrimalAttention, KEPSVGPAttention))


class PrimalObjective:
    """Measures J and its gradient with respect to W_e and W_r, per image and head, compared with untrained weights."""

    title = "Primal attention is a kernel SVD: J = 0 at a stationary point"
    source = "Chen et al. (2023), arXiv:2305.19798, section 3"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "objective": Statistic("J = (|e Lambda|^2 + |r Lambda|^2) / (2 N) - tr(W_e^T W_r); 0 at a stationary point"),
        "relative": Statistic("|J| over the sum of its terms' magnitudes; 0 at a stationary point", "less"),
        "relative_untrained": Statistic("the same with W_e, W_r and Lambda as initialised"),
        "gradient": Statistic("|gradient of J| over the sum of its parts' magnitudes; 0 at a stationary point", "less"),
        "gradient_untrained": Statistic("the same with W_e, W_r and Lambda as initialised"),
    }
    profiles: ClassVar[Mapping[str, str]] = {}

    applies = staticmethod(is_primal)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Evaluate J for the trained weights and for random initial weights."""
        scores: PrimalScores = layer.module.scores  # type: ignore[assignment]
        maps, (w_e, w_r, lam) = feature_maps(layer, scores), learned(layer)
        objective, relative, gradient = stationarity(*maps, w_e, w_r, lam)
        _, relative_start, gradient_start = stationarity(*maps, *untrained(layer, w_e))
        return {
            "objective": objective,
            "relative": relative,
            "relative_untrained": relative_start,
            "gradient": gradient,
            "gradient_untrained": gradient_start,
        }

    def verdict(self, results: Results) -> Verdict:
        """Supported if, in enough heads, J and its gradient are small relative to their terms."""
        pairs = zip(results.statistics["relative"].units, results.statistics["gradient"].units, strict=True)
        small = [(j.mean <= thresholds.OBJECTIVE, slope.mean <= thresholds.STATIONARITY) for j, slope in pairs]
        both, zero = sum(j and slope for j, slope in small), sum(j for j, _ in small)
        value = {name: results.statistics[name].estimate.value for name in self.statistics}
        why = (
            f"{both} of {len(small)} heads have |J| <= {thresholds.OBJECTIVE} and |gradient| <= "
            f"{thresholds.STATIONARITY} of their terms ({zero} satisfy the condition on J); "
            f"{thresholds.HEADS_SHARE:.0%} are needed. Mean |J| {value['relative']:.3f} (untrained "
            f"{value['relative_untrained']:.3f}), gradient {value['gradient']:.3f} (untrained "
            f"{value['gradient_untrained']:.3f})"
        )
        return by_heads(both, len(small), why)


def feature_maps(layer: Layer, scores: PrimalScores) -> tuple[Maps, Maps]:
    """Return A and B with e = A W_e and r = B W_r: A = phi(q) X_h^T of the landmarks."""
    a, b = feature_map(layer.q), feature_map(layer.k)
    data = layer.x.double()[:, scores.landmarks].unflatten(-1, (scores.num_heads, -1)).permute(0, 2, 3, 1)
    data = data[:, list(layer.heads)]
    return a @ data, b @ data


def stationarity(
    a: Maps, b: Maps, w_e: Weights, w_r: Weights, lam: Float[Tensor, "heads rank"]
) -> tuple[PerHead, PerHead, PerHead]:
    """Return J, |J| relative to its terms, and its gradient's norm relative to its parts, for every image and head.

    J = (|A W_e Lambda|^2 + |B W_r Lambda|^2) / (2 N) - tr(W_e^T W_r), as in `attention.primal.ksvd_objective`, with

    dJ / dW_e = A^T A W_e Lambda^2 / N - W_r,    dJ / dW_r = B^T B W_r Lambda^2 / N - W_e
    """
    tokens, square = a.shape[-2], lam.square().unsqueeze(-2)
    e, r = a @ w_e, b @ w_r
    spread = ((e.square() + r.square()) * square).sum((-2, -1)) / (2 * tokens)
    trace = (w_e * w_r).sum((-2, -1))
    objective = spread - trace
    pulls = [x.transpose(-2, -1) @ y * square / tokens for x, y in ((a, e), (b, r))]
    gradient, parts = torch.zeros_like(spread), torch.zeros_like(spread)
    for pull, other in zip(pulls, (w_r, w_e), strict=True):
        gradient = gradient + (pull - other).square().sum((-2, -1))
        parts = parts + (pull.square().sum((-2, -1)).sqrt() + other.square().sum((-2, -1)).sqrt()).square()
    relative = objective.abs() / (spread + trace.abs()).clamp_min(1e-300)
    return objective, relative, (gradient / parts.clamp_min(1e-300)).sqrt()


def learned(layer: Layer) -> tuple[Weights, Weights, Float[Tensor, "heads rank"]]:
    """Return W_e, W_r and the diagonal of Lambda of the layer's heads."""
    module: Any = layer.module
    scores, heads = module.scores, list(layer.heads)
    lam = module.log_lam.exp() if isinstance(module, KEPSVGPAttention) else module.lam
    w_e, w_r, lam = (tensor.detach().double()[heads] for tensor in (scores.w_e, scores.w_r, lam))
    return w_e, w_r, lam


def untrained(layer: Layer, w_e: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """Draw weights like the layer's initialisation: Gaussian with norm 1 in each head, and Lambda.

    Lambda is uniform in [0, 1) in primal attention, and the exponential of that in KEP-SVGP attention.
    """
    rng = generator(sample_key(layer.seed, "untrained", str(layer.index)))
    heads, width, rank = w_e.shape
    drawn = [torch.from_numpy(rng.standard_normal((heads, width, rank))).to(w_e) for _ in range(2)]
    drawn = [x / x.square().sum((-2, -1), keepdim=True).sqrt() for x in drawn]
    lam = torch.from_numpy(rng.random((heads, rank))).to(w_e)
    return drawn[0], drawn[1], lam.exp() if isinstance(layer.module, KEPSVGPAttention) else lam


CLAIM = PrimalObjective()
