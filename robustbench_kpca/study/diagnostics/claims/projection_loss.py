"""Claim: a head's output is the projection of the query, as the projection loss J_proj assumes.

J_proj = mean_i (|phi(q_i)|^2 - |h_i|^2): Teo & Nguyen (2024), arXiv:2406.13762, equation 13 and appendix C. It is a
squared distance, hence not negative, only if h_i are coordinates in orthonormal axes; trained V need not satisfy this.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.attention.shared.heads import standardised
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, adjusted, by_heads, untestable
from robustbench_kpca.study.diagnostics.diagnosis import Finding, finding
from robustbench_kpca.study.diagnostics.kernel import log_kernel
from robustbench_kpca.study.diagnostics.layer import Heads, Layer
from robustbench_kpca.study.diagnostics.similarity import unit_rows

_STUDY = "Sarıtaş & Yıldız (2025), arXiv:2505.07908, abstract"
_LARGEST = 300.0
"""Squared norms are clamped to e^-300 ... e^300 before they are averaged, so that their squares do not overflow."""
_TINY = 1e-300
_OTHER = (
    "outputs for one image compared with the projections of another image, same layer and head: they have the same "
    "scale and smoothness, but are unrelated to that image's keys"
)
_POOLED = "over tokens, heads and images, per layer and over all layers"
PerToken = Float[Tensor, "images heads tokens"]
PerHead = Float[Tensor, "images heads"]
Pairs = Float[Tensor, "images images heads"]


class ProjectionLoss:
    """Measures both terms of J_proj, quantities derived from them, and the distance of outputs from projections.

    The inequality is a theorem about projections, hence necessary; any outputs that are small enough satisfy it, too.
    """

    title = "Attention outputs are projections, and J_proj is their error"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, equation 13"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "projection_error": Statistic(
            "distance of the outputs from the projections of phi(q) on the first D axes, under the best rotation, over "
            "the larger norm of the two: 0 for projections, 1 for outputs far too small or too large",
            "less",
            _OTHER,
        ),
        "inequality": Statistic("fraction of tokens with |h|^2 <= |phi(q)|^2; 1 for a projection", "more"),
        "phi": Statistic("mean |phi(q)|^2"),
        "h": Statistic("mean |h|^2"),
        "phi_standardised": Statistic("mean |phi(q)|^2 with q and k standardised, as in the study's training"),
        "scaled_signed": Statistic("J_proj = mean (|phi(q)|^2 - |h|^2); not negative for a projection"),
        "scaled_absolute": Statistic("mean ||phi(q)|^2 - |h|^2|"),
        "error_over_phi": Statistic("mean ||phi(q)|^2 - |h|^2| / |phi(q)|^2"),
        "error_over_h": Statistic("mean ||phi(q)|^2 - |h|^2| / |h|^2"),
        "log10_phi": Statistic(f"log10 of the arithmetic mean of |phi(q)|^2 {_POOLED}", log10_of=("phi",)),
        "log10_h": Statistic(f"log10 of the arithmetic mean of |h|^2 {_POOLED}", log10_of=("h",)),
        "log10_ratio": Statistic(
            f"log10 of the ratio of these means, |h|^2 over |phi(q)|^2, {_POOLED}; at most 0 for a projection",
            log10_of=("h", "phi"),
        ),
        "log10_ratio_standardised": Statistic(
            "the same with q and k standardised in phi", log10_of=("h", "phi_standardised")
        ),
        "log10_error_ratio": Statistic(
            "log10 of mean ||phi(q)|^2 - |h|^2| over mean |phi(q)|^2", log10_of=("scaled_absolute", "phi")
        ),
        "relative_to_phi": Statistic(
            "log10 of the arithmetic mean of ||phi(q)|^2 - |h|^2| / |phi(q)|^2", log10_of=("error_over_phi",)
        ),
        "relative_to_h": Statistic(
            "log10 of the arithmetic mean of ||phi(q)|^2 - |h|^2| / |h|^2", log10_of=("error_over_h",)
        ),
        "log10_ratio_geometric": Statistic(
            "log10 of mean |h|^2 / mean |phi(q)|^2, both over tokens, geometric mean over heads and images"
        ),
        "relative_to_phi_geometric": Statistic(
            "log10 of mean ||phi(q)|^2 - |h|^2| / |phi(q)|^2 over tokens, geometric mean over heads and images"
        ),
        "official_log": Statistic(
            "the released code's estimator: the logarithm of |mean error| with q and k standardised and phi's term "
            "exp(q.q) / exp(2 q.k_1 - log a_1^2), which mixes the kernel exp(x.y) with a softmax of exp(x.y / sqrt(D)) "
            "(there the sign decides whether it is a number)"
        ),
    }
    profiles: ClassVar[Mapping[str, str]] = {}

    applies = staticmethod(Layer.has_outputs)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Compute in logarithms: |phi(q_i)|^2 = exp(q_i.q_i / sqrt(D) - 2 log sum_j exp(q_i.k_j / sqrt(D)))."""
        log_phi = log_feature_norm(layer.q, layer.k)
        log_h = layer.outputs.square().sum(-1).clamp_min(_TINY).log()
        mean_phi, mean_h = log_mean(log_phi), log_mean(log_h)
        mean_standardised = log_mean(log_feature_norm(standardised(layer.q), standardised(layer.k)))
        log_error = _log_difference(log_phi, log_h)
        over_phi = log_mean(log_error - log_phi)
        return {
            "projection_error": projection_error(layer),
            "inequality": (log_h <= log_phi + 1e-9).double().mean(-1),
            "phi": _clamped_exp(mean_phi),
            "h": _clamped_exp(mean_h),
            "phi_standardised": _clamped_exp(mean_standardised),
            "scaled_signed": _clamped_exp(mean_phi) - _clamped_exp(mean_h),
            "scaled_absolute": _clamped_exp(log_mean(log_error)),
            "error_over_phi": _clamped_exp(over_phi),
            "error_over_h": _clamped_exp(log_mean(log_error - log_h)),
            "log10_ratio_geometric": (mean_h - mean_phi) / math.log(10),
            "relative_to_phi_geometric": over_phi / math.log(10),
            "official_log": official_log_error(layer.q, layer.k, layer.values),
        }

    def verdict(self, results: Results) -> Verdict:
        """Supported if, in enough heads, outputs satisfy the inequality and are close to projections, beyond chance."""
        obeys = [unit.mean >= thresholds.INEQUALITY_SHARE for unit in results.statistics["inequality"].units]
        error = results.statistics["projection_error"]
        close_heads = [
            unit.mean <= thresholds.PROJECTION_ERROR and adjusted(unit) <= thresholds.SIGNIFICANCE
            for unit in error.units
        ]
        both, heads = sum(shorter and close for shorter, close in zip(obeys, close_heads, strict=True)), len(obeys)
        ratio = results.statistics["log10_ratio"]
        layers = [unit.mean for unit in ratio.units]
        why = (
            f"{both} of {heads} heads have outputs at most {thresholds.PROJECTION_ERROR:g} from the "
            f"projections of phi(q), closer than to another image's (Holm's p <= {thresholds.SIGNIFICANCE}), and |h|^2 "
            f"<= |phi(q)|^2 for at least {thresholds.INEQUALITY_SHARE:.0%} of the tokens; {sum(obeys)} satisfy the "
            f"latter, which is necessary but not sufficient; {thresholds.HEADS_SHARE:.0%} are needed. Mean distance "
            f"{error.estimate.value:.3f}. Mean |h|^2 is 10^{ratio.estimate.value:.2f} times mean |phi(q)|^2 (by layer "
            f"10^{min(layers):.2f} to 10^{max(layers):.2f})"
        )
        findings = _findings(results)
        if sum(obeys) >= thresholds.HEADS_SHARE * heads and (never := untestable(error)):
            return Verdict("not testable", f"a necessary condition holds, but {never}: {why}", findings)
        return by_heads(both, heads, why, findings)


def _findings(results: Results) -> tuple[Finding, ...]:
    """Compare with the factor in the study's abstract, which does not define how it is computed."""
    statement = "|h|^2 and |phi(q)|^2 differ by about 10^3 (taken as 10^2.5 to 10^3.5)"
    ways = {
        "log10_ratio": "ratio of their arithmetic means over all layers",
        "log10_ratio_standardised": "the same with standardised q and k",
        "relative_to_phi": "arithmetic mean of their ratio minus 1",
    }
    return tuple(
        finding(f"{statement}, {way}", _STUDY, name, results.statistics[name].estimate, least=2.5, most=3.5)
        for name, way in ways.items()
    )


def projection_error(layer: Layer) -> Pairs:
    """Return min over rotations R of |h - P R| / max(|h|, |P|): [i, j] takes h of image i and P of image j.

    P_i = softmax(q_i . k / sqrt(D)) V holds the coordinates of the projection of phi(q_i) on the first D axes, for V
    the theoretical values of orthonormal features. For h and P scaled to norm 1, the squared error under the best
    rotation is 1 + r^2 - 2 r c, where r is the smaller original norm over the larger and c the nuclear norm of P^T h
    (Schönemann 1966).
    """
    values, log_scale = layer.spectrum.orthonormal_values(layer.width)
    projections = log_kernel(layer.q, layer.k).softmax(-1) @ values
    (h, log_h), (p, log_p) = (_normed(x) for x in (layer.outputs, projections))
    log_p = log_p + log_scale
    aligned = torch.linalg.svdvals(torch.einsum("jhnd,ihne->ijhde", p, h)).sum(-1)
    ratio = (-(log_h.unsqueeze(1) - log_p.unsqueeze(0)).abs()).exp()
    error: Tensor = (1 + ratio.square() - 2 * ratio * aligned).clamp_min(0).sqrt()
    return error


def _normed(x: Heads) -> tuple[Heads, PerHead]:
    """Return matrices scaled to norm 1, and the logarithms of their norms; 0 stays 0."""
    unit = unit_rows(x.flatten(2)).view_as(x)
    size = (x * unit).sum((-2, -1))
    return unit, size.clamp_min(_TINY).log()


def _clamped_exp(log: PerHead) -> PerHead:
    return log.clamp(-_LARGEST, _LARGEST).exp()


def log_feature_norm(q: Heads, k: Heads) -> PerToken:
    """Return log |phi(q_i)|^2 of the normalised feature map."""
    exponent = q.square().sum(-1) / q.shape[-1] ** 0.5
    log_norm: Tensor = exponent - 2 * log_kernel(q, k).logsumexp(-1)
    return log_norm


def log_mean(logs: PerToken) -> PerHead:
    """Return the logarithm of the mean over tokens of exp(logs)."""
    return logs.logsumexp(-1) - math.log(logs.shape[-1])


def official_log_error(q: Heads, k: Heads, v: Heads) -> PerHead:
    """Return log |mean_i (num_i / den_i - |h_i|^2)| as in the released code, but without overflow.

    num_i = exp(q_i.q_i), den_i = exp(2 q_i.k_1 - log a_i1^2), a = softmax(q k^T / sqrt(D)) and h = a v, with q and k
    standardised over the entries of each token. As log a_i1 = q_i.k_1 / sqrt(D) - log Z_i, den_i is Z_i^2 exp(2 (1 - 1
    / sqrt(D)) q_i.k_1): the squared normaliser of the scaled kernel, times a factor that depends only on the first key.
    """
    q, k = standardised(q), standardised(k)
    logits = log_kernel(q, k)
    first = (q * k[..., :1, :]).sum(-1)
    log_weight = logits[..., 0] - logits.logsumexp(-1)
    log_phi = log_mean(q.square().sum(-1) - 2 * first + 2 * log_weight)
    h = logits.softmax(-1) @ v
    return _log_difference(log_phi, log_mean(h.square().sum(-1).clamp_min(_TINY).log()))


def _log_difference(a: Tensor, b: Tensor) -> Tensor:
    """Return log |e^a - e^b|; if both are equal, the logarithm of the rounding error."""
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    return high + (-torch.expm1(low - high)).clamp_min(torch.finfo(high.dtype).tiny).log()


CLAIM = ProjectionLoss()
