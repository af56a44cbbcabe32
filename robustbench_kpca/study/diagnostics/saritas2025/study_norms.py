"""The study's two terms of J_proj: |phi(q)|^2 and |h|^2, by layer; on one image.

Source: Sarıtaş & Yıldız (2025), arXiv:2505.07908. Its scripts divide by 8 instead of sqrt(D), which is right for heads
of width 64 only.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict
from robustbench_kpca.study.diagnostics.diagnosis import finding
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.saritas2025._gram import SOURCE, not_judged

_SCALE = 8.0
_SUMMARIES = {"mean": torch.mean, "median": torch.median, "min": torch.min, "max": torch.max}
PerToken = Float[Tensor, "images heads tokens"]


class StudyNorms:
    """Summaries over the tokens of all heads of a layer; each has one value per layer, repeated for its heads."""

    title = "The study's protocol: the two norms of the projection loss"
    source = SOURCE
    statistics: ClassVar[Mapping[str, Statistic]] = {
        **{f"phi_{name}": Statistic(f"{name} of |phi(q)|^2 over tokens and heads") for name in _SUMMARIES},
        **{f"h_{name}": Statistic(f"{name} of |h|^2 over tokens and heads") for name in _SUMMARIES},
        "phi_over_h": Statistic("mean of |phi(q)|^2 / |h|^2 over tokens and heads"),
        "difference": Statistic("|mean |phi(q)|^2 - mean |h|^2|"),
        "difference_over_phi": Statistic("that difference over mean |phi(q)|^2"),
        "difference_over_h": Statistic("that difference over mean |h|^2"),
        "log10_ratio": Statistic("log10 of mean |h|^2 over mean |phi(q)|^2", log10_of=("h_mean", "phi_mean")),
    }
    profiles: ClassVar[Mapping[str, str]] = {
        "phi_quartiles": "quartiles of |phi(q)|^2 over tokens and heads, values above the 95th percentile left out",
        "h_quartiles": "the same of |h|^2",
    }

    applies = staticmethod(Layer.has_outputs)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Compute |phi(q_i)|^2 = exp(q_i.q_i / 8 - 2 log sum_j exp(q_i.k_j / 8)) and |h_i|^2."""
        exponent = layer.q.square().sum(-1) / _SCALE
        phi = (exponent - 2 * (layer.q @ layer.k.transpose(-2, -1) / _SCALE).logsumexp(-1)).exp()
        h = layer.outputs.square().sum(-1)
        difference = (phi.mean((1, 2)) - h.mean((1, 2))).abs()
        by_layer = {
            **{f"phi_{name}": _pooled(phi, function) for name, function in _SUMMARIES.items()},
            **{f"h_{name}": _pooled(h, function) for name, function in _SUMMARIES.items()},
            "phi_over_h": (phi / h).mean((1, 2)),
            "difference": difference,
            "difference_over_phi": difference / phi.mean((1, 2)),
            "difference_over_h": difference / h.mean((1, 2)),
        }
        heads = layer.k.shape[1]
        means = {name: value.unsqueeze(1).expand(-1, heads) for name, value in by_layer.items()}
        quartiles = {f"{name}_quartiles": _quartiles(values) for name, values in (("phi", phi), ("h", h))}
        return means | {name: value.unsqueeze(1).expand(-1, heads, -1) for name, value in quartiles.items()}

    def verdict(self, results: Results) -> Verdict:
        """Return no verdict, and the comparison with the published factor."""
        ratio = results.statistics["log10_ratio"].estimate
        statement = "|h|^2 and |phi(q)|^2 differ by about 10^3 (taken as 10^2.5 to 10^3.5)"
        return not_judged((finding(statement, f"{SOURCE}, abstract", "log10_ratio", ratio, least=2.5, most=3.5),))


def _pooled(values: PerToken, function: object) -> Float[Tensor, " images"]:
    assert callable(function)
    return torch.stack([function(image) for image in values.flatten(1)])


def _quartiles(values: PerToken) -> Float[Tensor, "images 3"]:
    """Return the quartiles of the values that are at most the 95th percentile."""
    points = torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype, device=values.device)
    return torch.stack([image[image <= image.quantile(0.95)].quantile(points) for image in values.flatten(1)])


CLAIM = StudyNorms()
