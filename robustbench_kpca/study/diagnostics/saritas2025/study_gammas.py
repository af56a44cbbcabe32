"""The study's gamma by axis: standardised keys, true axes and axes with noise, in block 2, on one image.

Source: Sarıtaş & Yıldız (2025), arXiv:2505.07908. The shipped configuration replaces the axes A by QR(A + 0.1 N(0, 1)),
which shows that wrong axes have tiny absolute differences, too, because the eigenvalues are tiny.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.saritas2025 import _gram

BLOCK = 2
_NOISE = 0.1
_WORDS = {
    "absolute": "mean over pairs of tokens of |gamma_i - gamma_j|",
    "absolute_spread": "its standard deviation over pairs",
    "relative": "mean over pairs of |gamma_i - gamma_j| / (max(|gamma_i|, |gamma_j|) + 1e-10)",
    "relative_spread": "its standard deviation over pairs",
}
_AXES = {"": "axes with noise, as shipped", "_true": "axes without noise"}


class StudyGammas:
    """Mean and deviation over pairs for every axis, as profiles, and their means over axes."""

    title = "The study's protocol: gamma by axis with standardised keys, block 2"
    source = _gram.SOURCE
    statistics: ClassVar[Mapping[str, Statistic]] = {
        f"{name}{kind}": Statistic(f"{what}, mean over axes; {axes}")
        for kind, axes in _AXES.items()
        for name, what in _WORDS.items()
    }
    profiles: ClassVar[Mapping[str, str]] = {
        f"{name}_by_axis{kind}": f"{what}; {axes}" for kind, axes in _AXES.items() for name, what in _WORDS.items()
    }

    def applies(self, layer: Layer) -> bool:
        """Return whether this is block 2."""
        return layer.index == BLOCK

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Measure head by head."""
        noise = layer.gaussian("noise on axes")

        def measure(image: int, head: int) -> dict[str, Tensor]:
            gram, _ = _gram.centred_gram(_gram.standardised(layer.k[image, head]))
            true = _gram.axes_by_size(gram, layer.width)
            axes = torch.linalg.qr(true + _NOISE * noise[image, head, :, : true.shape[1]]).Q
            measured: dict[str, Tensor] = {}
            for kind, chosen in (("", axes), ("_true", true)):
                by_axis = dict(zip(_WORDS, gamma_pairs(gram, chosen), strict=True))
                measured |= {f"{name}_by_axis{kind}": values for name, values in by_axis.items()}
                measured |= {f"{name}{kind}": values.mean() for name, values in by_axis.items()}
            return measured

        return _gram.head_by_head(layer, measure)

    def verdict(self, results: Results) -> Verdict:  # noqa: ARG002
        """Return no verdict."""
        return _gram.not_judged()


def gamma_pairs(gram: _gram.Square, axes: _gram.Matrix) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean and (population) deviation over pairs i < j of both differences, for every axis."""
    tokens = len(axes)
    gamma = gram @ axes / (tokens * axes)
    first, second = torch.triu_indices(tokens, tokens, 1, device=gram.device)
    absolute = (gamma[first] - gamma[second]).abs()
    relative = absolute / (torch.maximum(gamma[first].abs(), gamma[second].abs()) + 1e-10)
    return absolute.mean(0), absolute.std(0, correction=0), relative.mean(0), relative.std(0, correction=0)


CLAIM = StudyGammas()
