"""How far gamma is from constant along one axis: |gamma_i - gamma_j| over all pairs of tokens, without building them.

gamma_i = (K a)_i / (N a_i) is the same for every token i if the axis a is an eigenvector: Teo & Nguyen (2024),
arXiv:2406.13762, section 2.2.2 and figures 2 and 5. The relative difference is that of Sarıtaş & Yıldız (2025),
arXiv:2505.07908.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.study.diagnostics.kernel import Spectrum

Axes = Float[Tensor, "*batch tokens axes"]
PerAxis = Float[Tensor, "*batch axes"]


@dataclass(frozen=True)
class Differences:
    """Mean and standard deviation over pairs i < j, for every axis; all are 0 where the axis is 0.

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
    tokens, here = axes.shape[-2], axes != 0
    gamma = torch.where(here, (spectrum.gram @ axes) / (tokens * torch.where(here, axes, 1)), 0)
    scale = spectrum.log_scale.exp().unsqueeze(-1)
    absolute, absolute_spread = _absolute(gamma)
    relative, relative_spread = _relative(gamma)
    return Differences(absolute * scale, absolute_spread * scale, relative, relative_spread, here.any(-2))


def _absolute(gamma: Axes) -> tuple[PerAxis, PerAxis]:
    """Return mean and deviation of |gamma_i - gamma_j|.

    With gamma ascending, sum_{i<j} (gamma_j - gamma_i) = sum_j (2 j - N + 1) gamma_j; the sum of the squares is N
    times that of the squared distances from the mean.
    """
    tokens = gamma.shape[-2]
    apart = gamma.sort(-2).values - gamma.mean(-2, keepdim=True)
    weights = 2 * _ranks(gamma) - tokens + 1
    return _moments((weights * apart).sum(-2), tokens * apart.square().sum(-2), tokens)


def _relative(gamma: Axes) -> tuple[PerAxis, PerAxis]:
    """Return mean and deviation of |gamma_i - gamma_j| / max(|gamma_i|, |gamma_j|).

    With |gamma| ascending this is (gamma_j - gamma_i) / gamma_j for i < j. The sums over i are taken of the distances
    from the median, which keeps what differs little accurate. Two zeros do not differ.
    """
    rising = gamma.take_along_dim(gamma.abs().argsort(-2), -2)
    apart, ranks = rising - rising.median(-2, keepdim=True).values, _ranks(gamma)
    before, squares = apart.cumsum(-2) - apart, apart.square().cumsum(-2) - apart.square()
    over = torch.where(rising == 0, torch.inf, rising)
    first = ((ranks * apart - before) / over).sum(-2)
    second = ((ranks * apart.square() - 2 * apart * before + squares) / over.square()).sum(-2)
    return _moments(first, second, gamma.shape[-2])


def _moments(first: PerAxis, second: PerAxis, tokens: int) -> tuple[PerAxis, PerAxis]:
    pairs = max(tokens * (tokens - 1) / 2, 1)
    mean = first / pairs
    return mean, (second / pairs - mean.square()).clamp_min(0).sqrt()


def _ranks(gamma: Axes) -> Tensor:
    return torch.arange(gamma.shape[-2], dtype=gamma.dtype, device=gamma.device).unsqueeze(-1)
