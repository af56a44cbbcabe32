"""Claim: the axes implied by V are eigenvectors, so gamma_i = (K a)_i / (N a_i) does not depend on the token i.

Source: Teo & Nguyen (2024), arXiv:2406.13762, section 2.2.2 and figures 2 and 5, with a = (I - 1_N)^-1 G^-1 V[:, d].
I - 1_N is a projector, hence singular; its pseudo-inverse, I - 1_N itself, is used instead. Small absolute differences
are no evidence because the eigenvalues are small: Sarıtaş & Yıldız (2025), arXiv:2505.07908; so are relative ones used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, adjusted, by_heads, untestable
from robustbench_kpca.study.diagnostics.kernel import Spectrum, Square
from robustbench_kpca.study.diagnostics.layer import Heads, Layer

Axes = Float[Tensor, "*batch tokens axes"]
PerAxis = Float[Tensor, "*batch axes"]


@dataclass(frozen=True)
class Differences:
    """Mean and standard deviation over pairs of tokens i < j, for every axis; all are 0 where the axis is 0.

    Attributes:
        absolute: mean of |gamma_i - gamma_j|.
        absolute_spread: its standard deviation over the pairs.
        relative: mean of |gamma_i - gamma_j| / max(|gamma_i|, |gamma_j|), which is 0 if constant and at most 2.
        relative_spread: its standard deviation over the pairs.
        there: whether the axis is not 0.
    """

    absolute: PerAxis
    absolute_spread: PerAxis
    relative: PerAxis
    relative_spread: PerAxis
    there: Tensor

    def over_axes(self, values: PerAxis) -> Float[Tensor, "*batch"]:
        """Return the mean over the axes that are not 0."""
        mean: Tensor = (values * self.there).sum(-1) / self.there.sum(-1).clamp_min(1)
        return mean


def differences(spectrum: Spectrum, axes: Axes) -> Differences:
    """Measure gamma of every axis in the eigenproblem of `spectrum`; tokens with a_i = 0 have gamma 0."""
    tokens, nonzero = axes.shape[-2], axes != 0
    gamma = torch.where(nonzero, (spectrum.gram @ axes) / (tokens * torch.where(nonzero, axes, 1)), 0)
    scale = spectrum.log_scale.exp().unsqueeze(-1)
    absolute, absolute_spread = _absolute(gamma)
    relative, relative_spread = _relative(gamma)
    return Differences(absolute * scale, absolute_spread * scale, relative, relative_spread, nonzero.any(-2))


def _absolute(gamma: Axes) -> tuple[PerAxis, PerAxis]:
    """Return mean and deviation of |gamma_i - gamma_j|.

    With gamma ascending, sum_{i<j} (gamma_j - gamma_i) = sum_j (2 j - N + 1) gamma_j; the sum of the squares is N
    times that of the squared distances from the mean.
    """
    tokens = gamma.shape[-2]
    centred = gamma.sort(-2).values - gamma.mean(-2, keepdim=True)
    weights = 2 * _ranks(gamma) - tokens + 1
    return _moments((weights * centred).sum(-2), tokens * centred.square().sum(-2), tokens)


def _relative(gamma: Axes) -> tuple[PerAxis, PerAxis]:
    """Return mean and deviation of |gamma_i - gamma_j| / max(|gamma_i|, |gamma_j|).

    With |gamma| ascending this is (gamma_j - gamma_i) / gamma_j for i < j. The sums over i are taken of the distances
    from the median, which keeps what differs little accurate. Two zeros do not differ.
    """
    rising = gamma.take_along_dim(gamma.abs().argsort(-2), -2)
    centred, ranks = rising - rising.median(-2, keepdim=True).values, _ranks(gamma)
    before, squares = centred.cumsum(-2) - centred, centred.square().cumsum(-2) - centred.square()
    over = torch.where(rising == 0, torch.inf, rising)
    first = ((ranks * centred - before) / over).sum(-2)
    second = ((ranks * centred.square() - 2 * centred * before + squares) / over.square()).sum(-2)
    return _moments(first, second, gamma.shape[-2])


def _moments(first: PerAxis, second: PerAxis, tokens: int) -> tuple[PerAxis, PerAxis]:
    pairs = max(tokens * (tokens - 1) / 2, 1)
    mean = first / pairs
    return mean, (second / pairs - mean.square()).clamp_min(0).sqrt()


def _ranks(gamma: Axes) -> Tensor:
    return torch.arange(gamma.shape[-2], dtype=gamma.dtype, device=gamma.device).unsqueeze(-1)


_OTHER = (
    "axes from V of one image in the eigenproblem of another image, same layer and head: they have the same scale and "
    "smoothness, but are unrelated to that image's Gram matrix"
)
_BY_AXIS = {
    "absolute": "mean over pairs of tokens of |gamma_i - gamma_j|, by axis",
    "absolute_spread": "standard deviation over pairs of tokens of |gamma_i - gamma_j|, by axis",
    "relative": "mean over pairs of tokens of |gamma_i - gamma_j| / max(|gamma_i|, |gamma_j|), by axis",
    "relative_spread": "standard deviation over pairs of tokens of that relative difference, by axis",
}
_AXES = {
    "": ", axes implied by V",
    "_other": ", axes implied by V of another image",
    "_random": ", random axes",
    "_true": ", true axes",
}
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
    profiles: ClassVar[Mapping[str, str]] = {
        f"{name}_by_axis{kind}": f"{what}{whose}" for name, what in _BY_AXIS.items() for kind, whose in _AXES.items()
    }

    applies = staticmethod(Layer.has_values)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Evaluate three kinds of axes in the eigenproblem: implied by V, random, and true."""
        spectrum, v = layer.spectrum, layer.values
        true = spectrum.leading_axes(layer.width)
        random = _centred(layer.gaussian("random axes"))
        kinds = {"": implied_axes(v, spectrum.log_g), "_random": random, "_true": true}
        if len(v) > 1:
            kinds["_other"] = implied_axes(v.roll(1, 0), spectrum.log_g)
        measured: dict[str, Tensor] = {}
        for kind, axes in kinds.items():
            measured |= _observed(kind, residual(spectrum.gram, axes), differences(spectrum, axes))
        measured["residual"] = torch.stack(
            [residual(spectrum.gram, implied_axes(values.expand_as(v), spectrum.log_g)) for values in v]
        )
        return measured

    def verdict(self, results: Results) -> Verdict:
        """Supported if the axes of enough heads are close to eigenvectors, and closer than by chance."""
        measured = results.statistics["residual"]
        passing = sum(
            unit.mean <= thresholds.EIGEN_RESIDUAL and adjusted(unit) <= thresholds.SIGNIFICANCE
            for unit in measured.units
        )
        if never := untestable(measured):
            return Verdict("not testable", never)
        control = results.statistics["residual_random"].estimate.value
        why = (
            f"{passing} of {len(measured.units)} heads have a residual <= {thresholds.EIGEN_RESIDUAL} (Holm's p <= "
            f"{thresholds.SIGNIFICANCE}); {thresholds.HEADS_SHARE:.0%} are needed. Mean {measured.estimate.value:.3f}, "
            f"random axes {control:.3f}"
        )
        return by_heads(passing, len(measured.units), why)


def _observed(kind: str, residual: PerHead, differences: Differences) -> dict[str, Tensor]:
    """Name what was measured of one kind of axes; of the other image's, whose residual is a null, only profiles."""
    by_axis = {f"{name}_by_axis{kind}": getattr(differences, name) for name in _BY_AXIS}
    if kind == "_other":
        return by_axis
    means = {f"{name}{kind}": differences.over_axes(getattr(differences, name)) for name in ("absolute", "relative")}
    return means | by_axis | {f"residual{kind}": residual}


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


def _centred(x: Heads) -> Heads:
    return x - x.mean(-2, keepdim=True)


CLAIM = Gamma()
