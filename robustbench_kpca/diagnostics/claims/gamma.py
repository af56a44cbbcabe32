"""Claim: the axes implied by V are eigenvectors, so gamma_i = (K a)_i / (N a_i) does not depend on the token i.

Source: Teo & Nguyen (2024), arXiv:2406.13762, section 2.2.2 and figure 2, with a = (I - 1_N)^-1 G^-1 V[:, d]. I - 1_N
is a projector, hence singular; its pseudo-inverse, which is I - 1_N itself, is used instead. Small absolute differences
are no evidence because the eigenvalues are small: Sarıtaş & Yıldız (2025), arXiv:2505.07908.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.diagnostics import thresholds
from robustbench_kpca.diagnostics.claims import UNTESTABLE, Results, Statistic, Verdict, adjusted, testable
from robustbench_kpca.diagnostics.diagnosis import Outcome
from robustbench_kpca.diagnostics.kernel import Spectrum, Square
from robustbench_kpca.diagnostics.layer import Heads, Layer

_OTHER = (
    "axes from V of one image in the eigenproblem of another image, same layer and head: they have the same scale and "
    "smoothness, but are unrelated to that image's Gram matrix"
)
PerHead = Float[Tensor, "images heads"]


class Gamma:
    """Measures the angle between K a and a, and the paper's and the study's summaries of gamma."""

    title = "The axes implied by V are eigenvectors: gamma is constant"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, section 2.2.2, equation 11"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "residual": Statistic("mean over axes of sin angle(K a, a): 0 for eigenvectors", "less", _OTHER),
        "residual_random": Statistic("the same for random axes"),
        "residual_true": Statistic("the same for the true axes: rounding error"),
        "absolute": Statistic("mean |gamma_i - gamma_j| over pairs of tokens and axes"),
        "absolute_random": Statistic("the same for random axes"),
        "absolute_true": Statistic("the same for the true axes"),
        "relative": Statistic("mean |gamma_i - gamma_j| / max(|gamma_i|, |gamma_j|): 0 if constant, at most 2"),
        "relative_random": Statistic("the same for random axes"),
        "relative_true": Statistic("the same for the true axes"),
    }
    profiles: ClassVar[Mapping[str, str]] = {}

    def applies(self, layer: Layer) -> bool:
        """Return whether the layer has values."""
        return layer.v is not None

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Evaluate three kinds of axes in the eigenproblem: implied by V, random, and true."""
        spectrum, v = layer.spectrum, layer.values
        true = spectrum.leading_axes(layer.width)
        random = _centred(layer.gaussian("random axes"))
        kinds = {"": implied_axes(v, spectrum.log_g), "_random": random, "_true": true}
        found = {f"residual{kind}": residual(spectrum.gram, axes) for kind, axes in kinds.items() if kind}
        for kind, axes in kinds.items():
            found[f"absolute{kind}"], found[f"relative{kind}"] = gamma_differences(spectrum, axes)
        found["residual"] = torch.stack(
            [residual(spectrum.gram, implied_axes(one.expand_as(v), spectrum.log_g)) for one in v]
        )
        return found

    def verdict(self, results: Results) -> Verdict:
        """Supported if the axes of enough heads are close to eigenvectors, and closer than by chance."""
        measured = results.statistics["residual"]
        near = sum(
            unit.mean <= thresholds.EIGEN_RESIDUAL and adjusted(unit) <= thresholds.SIGNIFICANCE
            for unit in measured.units
        )
        if not testable(measured):
            return Verdict("not testable", UNTESTABLE)
        control = results.statistics["residual_random"].estimate.value
        why = (
            f"{near} of {len(measured.units)} heads have a residual <= {thresholds.EIGEN_RESIDUAL} (Holm's p <= "
            f"{thresholds.SIGNIFICANCE}); {thresholds.HEADS_SHARE:.0%} are needed. Mean {measured.estimate.value:.3f}, "
            f"random axes {control:.3f}"
        )
        outcome: Outcome = "supported" if near >= thresholds.HEADS_SHARE * len(measured.units) else "not supported"
        return Verdict(outcome, why)


def implied_axes(v: Heads, log_g: Float[Tensor, "images heads tokens"]) -> Heads:
    """Return (I - 1_N)^+ G^-1 V up to a factor, which does not affect gamma and residual."""
    weights = (log_g - log_g.amax(-1, keepdim=True)).exp().unsqueeze(-1)
    return _centred(weights * v)


def residual(gram: Square, axes: Heads) -> PerHead:
    """Return the mean over axes of the sine of the angle between K a and a; axes that are 0 are left out.

    If all axes are 0, return 1: the zero vector is not an eigenvector.
    """
    image = gram @ axes
    size, length = image.norm(dim=-2), axes.norm(dim=-2)
    along = (image * axes).sum(-2) / torch.where(length > 0, length, 1)
    off = image - axes * (along / torch.where(length > 0, length, 1)).unsqueeze(-2)
    sines = off.norm(dim=-2) / torch.where(size > 0, size, 1)
    count = (length > 0).sum(-1)
    mean: Tensor = torch.where(count > 0, (sines * (length > 0)).sum(-1) / count.clamp_min(1), 1.0)
    return mean


def gamma_differences(spectrum: Spectrum, axes: Heads) -> tuple[PerHead, PerHead]:
    """Return mean |gamma_i - gamma_j| and its relative form over all pairs of tokens, then over nonzero axes.

    Computed by sorting instead of by pairs. With gamma ascending, sum_{i<j} (gamma_j - gamma_i) = sum_j (2 j - N + 1)
    gamma_j. With |gamma| ascending, |gamma_i - gamma_j| / max(|gamma_i|, |gamma_j|) = 1 - gamma_i / gamma_j for i < j.
    """
    tokens = axes.shape[-2]
    gamma = (spectrum.gram @ axes) / (tokens * torch.where(axes == 0, 1, axes))
    gamma = torch.where(axes == 0, 0, gamma)
    pairs = max(tokens * (tokens - 1) / 2, 1)
    ranks = torch.arange(tokens, dtype=gamma.dtype, device=gamma.device)
    absolute = ((2 * ranks - tokens + 1).unsqueeze(-1) * gamma.sort(-2).values).sum(-2) / pairs
    absolute = absolute * spectrum.log_scale.exp().unsqueeze(-1)
    rising = gamma.take_along_dim(gamma.abs().argsort(-2), -2)
    before = rising.cumsum(-2) - rising
    ratios = torch.where(rising == 0, ranks.unsqueeze(-1), before / torch.where(rising == 0, 1, rising))
    relative = 1 - ratios.sum(-2) / pairs
    there = (axes != 0).any(-2)
    count = there.sum(-1).clamp_min(1)
    return (absolute * there).sum(-1) / count, (relative * there).sum(-1) / count


def _centred(x: Heads) -> Heads:
    return x - x.mean(-2, keepdim=True)


CLAIM = Gamma()
