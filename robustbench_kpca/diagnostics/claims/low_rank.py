"""Whether the pursuit's L is a low-rank part of the keys, and whether that is the pursuit's doing.

Claim: Teo & Nguyen (2024), arXiv:2406.13762, section 3: L is the low-rank part, which textbook pursuit finds by
shrinking singular values. Here L is a mixture of values by attention; plain attention's mixture stands beside it.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from robustbench_kpca.diagnostics import thresholds
from robustbench_kpca.diagnostics.claims import ONE_IMAGE, Results, Statistic, Verdict, heads_ahead
from robustbench_kpca.diagnostics.layer import Heads, Layer
from robustbench_kpca.diagnostics.pursuits import PerHead, effective_rank, pursues, traces


class LowRank:
    """Compares effective rank and nuclear norm of L with those of K and of plain attention's output."""

    title = "The pursuit's L has a lower rank than the keys"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, section 3"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "rank_ratio": Statistic("effective rank of L over that of K, last iteration", "less"),
        "rank_ratio_random": Statistic("the same for Gaussian keys and values of the head's own sizes"),
        "rank_ratio_unpursued": Statistic("the same with L of plain attention"),
        "rank_saved": Statistic("that of plain attention less the own one", "more"),
        "rank_k": Statistic("effective rank of K: exp of the entropy of its singular values"),
        "rank_v": Statistic("effective rank of V, of which L is a mixture"),
        "nuclear_ratio": Statistic("nuclear norm of L over that of K, last iteration"),
    }
    profiles: ClassVar[Mapping[str, str]] = {}

    def applies(self, layer: Layer) -> bool:
        """Only where a pursuit runs."""
        return pursues(layer)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Run the layer's pursuit and take singular values."""
        found = traces(layer)
        keys, low_rank = (torch.linalg.svdvals(x) for x in (layer.k, found.own[-1].low_rank))
        own, plain = effective_rank(low_rank) / effective_rank(keys), rank_ratio(found.unpursued.low_rank, layer.k)
        return {
            "rank_ratio": own,
            "rank_ratio_random": rank_ratio(found.random[-1].low_rank, found.random[-1].k),
            "rank_ratio_unpursued": plain,
            "rank_saved": plain - own,
            "rank_k": effective_rank(keys),
            "rank_v": effective_rank(torch.linalg.svdvals(layer.values)),
            "nuclear_ratio": low_rank.sum(-1) / keys.sum(-1).clamp_min(1e-300),
        }

    def verdict(self, results: Results) -> Verdict:
        """Supported if, in enough heads, L has a part of the keys' effective rank, and less than plain attention's."""
        measured, saved = results.statistics["rank_ratio"], results.statistics["rank_saved"]
        few = [unit.mean <= thresholds.LOW_RANK_PART for unit in measured.units]
        low = sum(part and ahead for part, ahead in zip(few, heads_ahead(saved), strict=True))
        plain, random = (results.statistics[f"rank_ratio_{kind}"].estimate.value for kind in ("unpursued", "random"))
        why = (
            f"{low} of {len(measured.units)} heads have an L of at most {thresholds.LOW_RANK_PART:g} times the "
            f"effective rank of K, and of less than plain attention's output (Holm's p <= {thresholds.SIGNIFICANCE}; "
            f"{sum(few)} whatever that has); {thresholds.HEADS_SHARE:.0%} would do. Mean "
            f"{measured.estimate.value:.3f}, of plain attention, without any pursuit, {plain:.3f}, with it on random "
            f"keys {random:.3f}"
        )
        if saved.estimate.n < 2:
            return Verdict("not testable", f"{ONE_IMAGE}. {why}")
        return Verdict("supported" if low >= thresholds.HEADS_SHARE * len(measured.units) else "not supported", why)


def rank_ratio(low_rank: Heads, keys: Heads) -> PerHead:
    """Return the effective rank of one matrix over that of another, head by head."""
    return effective_rank(torch.linalg.svdvals(low_rank)) / effective_rank(torch.linalg.svdvals(keys))


CLAIM = LowRank()
