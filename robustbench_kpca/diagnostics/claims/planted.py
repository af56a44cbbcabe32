"""Whether the pursuit finds planted outliers, beside its rule as printed, with textbook signs, and textbook pursuit.

Claim: Teo & Nguyen (2024), arXiv:2406.13762, section 3: the pursuit takes sparse corruption out of the keys as
principal component pursuit does (Candès et al., 2011, arXiv:0912.3599), of which it is an approximation. The planted
keys have the shape and the size of the layer's own, which decides: the released threshold does not scale with the keys.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from robustbench_kpca.diagnostics import thresholds
from robustbench_kpca.diagnostics.claims import Results, Statistic, Verdict
from robustbench_kpca.diagnostics.layer import Layer
from robustbench_kpca.diagnostics.planting import Planted, Recovery, paper_rule, plant, pursue, textbook, textbook_rule
from robustbench_kpca.diagnostics.pursuits import pursues, pursuit_of, size

_RULES = {
    "": "the layer's own pursuit",
    "_paper": "the rule as printed: lam / mu, mu by the head's width, sign -1",
    "_signs": "textbook threshold and sign, attention for the singular-value step",
    "_textbook": "textbook principal component pursuit",
}
_MEASURES = {
    "f1": "F1 score of the support of S",
    "precision": "precision of the support of S (0 if empty)",
    "recall": "recall of the support of S",
    "error": "|L - L_0| / |L_0|, values are the keys",
}


class PlantedOutliers:
    """Plants one problem an image and asks four rules to solve it."""

    title = "The pursuit finds outliers planted into low-rank keys"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, section 3"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        f"{name}{rule}": Statistic(f"{what}: {of}", "less" if name == "error" else "more")
        for name, what in _MEASURES.items()
        for rule, of in _RULES.items()
    } | {
        "error_clean_values": Statistic("|L - L_0| / |L_0|, the layer's own pursuit given the clean L_0 as values"),
        "residual_textbook": Statistic(
            "where textbook pursuit stopped: the largest residual of a block; 1e-7 was asked"
        ),
        "error_nothing": Statistic("|K - L_0| / |L_0|: what doing nothing gives"),
    }
    profiles: ClassVar[Mapping[str, str]] = {}

    def applies(self, layer: Layer) -> bool:
        """Only where a pursuit runs."""
        return pursues(layer)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Plant, in each image and head, keys of the layer's shape and of the head's own size; on the processor."""
        unit, best = _problem(layer.k.shape[-2], layer.width, layer.seed, layer.ids)
        scales = layer.k.square().mean((-2, -1)).sqrt().clamp_min(1e-12).cpu()
        planted = unit.scaled(scales)
        own, heads = pursuit_of(layer), int(layer.module.num_heads)  # type: ignore[arg-type]
        found = {
            "": pursue(planted, own, heads),
            "_paper": pursue(planted, paper_rule(own), heads),
            "_signs": pursue(planted, textbook_rule(own), heads),
            "_textbook": best,
        }
        seen = {
            f"{name}{rule}": getattr(result, name).expand_as(scales)
            for name in _MEASURES
            for rule, result in found.items()
        }
        return seen | {
            "error_clean_values": pursue(planted, own, heads, oracle=True).error,
            "residual_textbook": torch.full_like(scales, best.residual),
            "error_nothing": size(planted.sparse) / size(planted.low_rank),
        }

    def verdict(self, results: Results) -> Verdict:
        """Supported if enough heads find the outliers; not testable if textbook pursuit does not find them either."""
        f1 = results.statistics["f1"]
        found = sum(unit.mean >= thresholds.OUTLIER_F1 for unit in f1.units)
        value = {rule: results.statistics[f"f1{rule}"].estimate.value for rule in _RULES}
        error = {rule: results.statistics[f"error{rule}"].estimate.value for rule in ("", "_textbook", "_nothing")}
        why = (
            f"{found} of {len(f1.units)} heads find planted outliers with F1 >= {thresholds.OUTLIER_F1}; "
            f"{thresholds.HEADS_SHARE:.0%} would do. Mean F1 {value['']:.2f}, printed rule {value['_paper']:.2f}, "
            f"textbook signs {value['_signs']:.2f}, textbook pursuit {value['_textbook']:.2f}. L is off by "
            f"{error['']:.2f} |L_0|, of textbook pursuit by {error['_textbook']:.1g}, of doing nothing by "
            f"{error['_nothing']:.2f}"
        )
        if value["_textbook"] < thresholds.OUTLIER_F1:
            return Verdict("not testable", f"too hard at this size, even for textbook pursuit: {why}")
        enough = found >= thresholds.HEADS_SHARE * len(f1.units)
        return Verdict("supported" if enough else "not supported", why)


@lru_cache(maxsize=1)  # all layers of a model have the same images
def _problem(tokens: int, width: int, seed: int, ids: tuple[str, ...]) -> tuple[Planted, Recovery]:
    planted = plant(tokens, width, ids, seed=seed)
    return planted, textbook(planted)


CLAIM = PlantedOutliers()
