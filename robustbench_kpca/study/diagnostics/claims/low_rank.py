"""Claim: the pursuit's L is a low-rank part of the keys, and this is an effect of the pursuit.

Source: Teo & Nguyen (2024), arXiv:2406.13762, section 3: L is the low-rank part, which textbook pursuit finds by
shrinking singular values. Here L is an attention-weighted mean of values; it is compared with plain attention's.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, by_heads, heads_ahead
from robustbench_kpca.study.diagnostics.layer import Heads, Layer
from robustbench_kpca.study.diagnostics.pursuits import PerHead, effective_rank, pursues, traces


class LowRank:
    """Compares effective rank and nuclear norm of L with those of K and of plain attention's output."""

    title = "The pursuit's L has a lower rank than the keys"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, section 3"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "rank_ratio": Statistic("effective rank of L over that of K, last iteration", "less"),
        "rank_ratio_random": Statistic("the same for Gaussian keys and values with the head's scale"),
        "rank_ratio_unpursued": Statistic("the same with L of plain attention"),
        "rank_saved": Statistic("rank ratio of plain attention minus that of the pursuit", "more"),
        "rank_k": Statistic("effective rank of K: exp of the entropy of its singular values"),
        "rank_v": Statistic("effective rank of V, whose rows L averages"),
        "nuclear_ratio": Statistic("nuclear norm of L over that of K, last iteration"),
    }
    profiles: ClassVar[Mapping[str, str]] = {}

    applies = staticmethod(pursues)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Run the layer's pursuit and compute singular values."""
        pursued = traces(layer)
        keys, low_rank = (torch.linalg.svdvals(x) for x in (layer.k, pursued.own[-1].low_rank))
        ratio, plain = effective_rank(low_rank) / effective_rank(keys), rank_ratio(pursued.unpursued.low_rank, layer.k)
        return {
            "rank_ratio": ratio,
            "rank_ratio_random": rank_ratio(pursued.random[-1].low_rank, pursued.random[-1].k),
            "rank_ratio_unpursued": plain,
            "rank_saved": plain - ratio,
            "rank_k": effective_rank(keys),
            "rank_v": effective_rank(torch.linalg.svdvals(layer.values)),
            "nuclear_ratio": low_rank.sum(-1) / keys.sum(-1).clamp_min(1e-300),
        }

    def verdict(self, results: Results) -> Verdict:
        """Supported if, in enough heads, L has a lower effective rank than the keys and plain attention's output."""
        measured, saved = results.statistics["rank_ratio"], results.statistics["rank_saved"]
        small = [unit.mean <= thresholds.LOW_RANK_PART for unit in measured.units]
        low = sum(part and ahead for part, ahead in zip(small, heads_ahead(saved), strict=True))
        plain, random = (results.statistics[f"rank_ratio_{kind}"].estimate.value for kind in ("unpursued", "random"))
        why = (
            f"{low} of {len(measured.units)} heads have an L with at most {thresholds.LOW_RANK_PART:g} times the "
            f"effective rank of K, and less than plain attention's output (Holm's p <= {thresholds.SIGNIFICANCE}; "
            f"{sum(small)} without this comparison); {thresholds.HEADS_SHARE:.0%} are needed. Mean "
            f"{measured.estimate.value:.3f}, plain attention without a pursuit {plain:.3f}, the pursuit on random "
            f"keys {random:.3f}"
        )
        return by_heads(low, len(measured.units), why, paired=saved)


def rank_ratio(low_rank: Heads, keys: Heads) -> PerHead:
    """Return the effective rank of one matrix over that of another, head by head."""
    return effective_rank(torch.linalg.svdvals(low_rank)) / effective_rank(torch.linalg.svdvals(keys))


CLAIM = LowRank()
