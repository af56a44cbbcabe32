"""Claim: an RPC layer still mixes tokens after its last iteration, rather than every token attending to itself.

Source: Teo & Nguyen (2024), arXiv:2406.13762, Definition 1: the layer's output is that of self-attention. The pursuit
feeds its output back into the softmax; with large keys this converges to the identity (benchmarks/pursuit.md).
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from robustbench_kpca.attention.rpc import Iterate
from robustbench_kpca.models.mixing import attention_weights
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, by_heads
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.pursuits import PerHead, pursues, size, traces


class Mixing:
    """Measures the attention of tokens to others, compared with plain attention and random keys."""

    title = "The layer still mixes tokens after the pursuit"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, Definition 1"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "diagonal": Statistic("mean attention of a token to itself, last iteration; 1 if tokens do not mix", "less"),
        "diagonal_random": Statistic("the same for Gaussian keys and values with the head's scale"),
        "diagonal_unpursued": Statistic("the same for plain attention on the same keys"),
        "entropy": Statistic("mean entropy of a token's attention over log(tokens); 1 if uniform", "more"),
        "entropy_random": Statistic("the same for Gaussian keys and values"),
        "entropy_unpursued": Statistic("the same for plain attention on the same keys"),
        "value_distance": Statistic("|L - V| / |V|, last iteration; 0 if the values pass unchanged", "more"),
        "value_distance_random": Statistic("the same for Gaussian keys and values"),
        "value_distance_unpursued": Statistic("the same for plain attention on the same keys"),
    }
    profiles: ClassVar[Mapping[str, str]] = {
        f"{name}_by_iteration{kind}": f"{what} by iteration{of}"
        for name, what in (
            ("diagonal", "mean attention of a token to itself"),
            ("entropy", "mean entropy of a token's attention over log(tokens)"),
            ("value_distance", "|L - V| / |V|"),
        )
        for kind, of in (("", ""), ("_random", ", Gaussian keys and values"))
    }

    applies = staticmethod(pursues)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Run the layer's pursuit on its own keys and on random ones."""
        pursued, measured = traces(layer), dict[str, Tensor]()
        for name, measure in (("diagonal", diagonal), ("entropy", entropy), ("value_distance", value_distance)):
            measured |= pursued.last(measure, name) | pursued.by_iteration(measure, name)
        return measured

    def verdict(self, results: Results) -> Verdict:
        """Supported if, in enough heads, tokens attend more to others than to themselves."""
        measured = results.statistics["diagonal"]
        mixing = sum(unit.mean <= thresholds.SELF_ATTENTION for unit in measured.units)
        value = {kind: results.statistics[f"diagonal{kind}"].estimate.value for kind in ("", "_unpursued", "_random")}
        why = (
            f"{mixing} of {len(measured.units)} heads have a mean attention of a token to itself of at most "
            f"{thresholds.SELF_ATTENTION}; {thresholds.HEADS_SHARE:.0%} are needed. Mean {value['']:.3f}; without the "
            f"pursuit {value['_unpursued']:.3f}; on random keys {value['_random']:.3f}"
        )
        return by_heads(mixing, len(measured.units), why)


def weights(step: Iterate) -> Tensor:
    """Return the attention matrices that produced L, (images, heads, tokens, tokens)."""
    return attention_weights(step.query, step.inner)


def diagonal(step: Iterate) -> PerHead:
    """Return the mean attention of a token to itself."""
    share: Tensor = weights(step).diagonal(dim1=-2, dim2=-1).mean(-1)
    return share


def entropy(step: Iterate) -> PerHead:
    """Return the mean entropy of a token's attention over that of uniform attention; 1 for a single token."""
    tokens = step.k.shape[-2]
    if tokens == 1:
        return torch.ones_like(size(step.k))
    mean: Tensor = torch.special.entr(weights(step)).sum(-1).mean(-1) / math.log(tokens)
    return mean


def value_distance(step: Iterate) -> PerHead:
    """Return ||L - V||_F / ||V||_F."""
    return size(step.low_rank - step.v) / size(step.v).clamp_min(1e-300)


CLAIM = Mixing()
