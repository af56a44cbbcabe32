"""Claim: a layer's pursuit finds planted outliers; three other rules split the same keys for comparison.

Source: Teo & Nguyen (2024), arXiv:2406.13762, section 3: the pursuit removes sparse corruption from the keys, as an
approximation of principal component pursuit (Candès et al., 2011, arXiv:0912.3599). The planted keys have the shape and
scale of the layer's keys. The scale matters: the threshold of the released code does not scale with the keys.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from robustbench_kpca.study.diagnostics import planting, thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, by_heads
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.pursuits import pursues, pursuit_of, size

_RULES = {
    "": "the layer's own pursuit",
    "_paper": "the printed rule: threshold lam / mu, mu from the head's width, sign -1",
    "_signs": "textbook threshold and sign, attention instead of the singular-value step",
    "_textbook": "textbook principal component pursuit",
}
"""End of a statistic's name -> the rule that splits the planted keys into L and S."""
_MEASURES = {
    "f1": "F1 score of the support of S",
    "precision": "precision of the support of S (0 if empty)",
    "recall": "recall of the support of S",
    "error": "|L - L_0| / |L_0|, values are the keys",
}
"""Start of a statistic's name, a field of `planting.Recovery` -> what it measures."""


class PlantedOutliers:
    """Plants one problem per image and solves it with four rules."""

    title = "The pursuit finds outliers planted into low-rank keys"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, section 3"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        f"{name}{rule}": Statistic(f"{measure}: {rule_title}", "less" if name == "error" else "more")
        for name, measure in _MEASURES.items()
        for rule, rule_title in _RULES.items()
    } | {
        "error_clean_values": Statistic("|L - L_0| / |L_0|, the layer's own pursuit given the clean L_0 as values"),
        "residual_textbook": Statistic(
            "residual at which textbook pursuit stopped, maximal over a block; the tolerance is 1e-7"
        ),
        "error_nothing": Statistic("|K - L_0| / |L_0|: the error without any splitting"),
    }
    profiles: ClassVar[Mapping[str, str]] = {}

    applies = staticmethod(pursues)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Plant keys with the layer's shape and the head's scale for each image and head; runs on the CPU."""
        unit_scale, textbook = _problem(layer.k.shape[-2], layer.width, layer.seed, layer.ids)
        scales = layer.k.square().mean((-2, -1)).sqrt().clamp_min(1e-12).cpu()
        planted = unit_scale.scaled(scales)
        layer_pursuit = pursuit_of(layer)
        pursuits = {
            "": planting.pursue(planted, layer_pursuit),
            "_paper": planting.pursue(planted, planting.paper_rule(layer_pursuit)),
            "_signs": planting.pursue(planted, planting.textbook_rule(layer_pursuit)),
            "_textbook": textbook,  # its recovery does not depend on the scale of the keys
        }
        measured = {
            f"{name}{rule}": getattr(result, name).expand_as(scales)
            for name in _MEASURES
            for rule, result in pursuits.items()
        }
        return measured | {
            "error_clean_values": planting.pursue(planted, layer_pursuit, oracle=True).error,
            "residual_textbook": torch.full_like(scales, textbook.residual),
            "error_nothing": size(planted.sparse) / size(planted.low_rank),
        }

    def verdict(self, results: Results) -> Verdict:
        """Supported if enough heads find the outliers; not testable if textbook pursuit does not find them."""
        f1 = results.statistics["f1"]
        hits = sum(head.mean >= thresholds.OUTLIER_F1 for head in f1.units)
        value = {rule: results.statistics[f"f1{rule}"].estimate.value for rule in _RULES}
        error = {rule: results.statistics[f"error{rule}"].estimate.value for rule in ("", "_textbook", "_nothing")}
        why = (
            f"{hits} of {len(f1.units)} heads find planted outliers with F1 >= {thresholds.OUTLIER_F1}; "
            f"{thresholds.HEADS_SHARE:.0%} are needed. Mean F1 {value['']:.2f}, printed rule {value['_paper']:.2f}, "
            f"textbook signs {value['_signs']:.2f}, textbook pursuit {value['_textbook']:.2f}. Error of L, "
            f"relative to |L_0|: {error['']:.2f}, textbook pursuit {error['_textbook']:.1g}, without splitting "
            f"{error['_nothing']:.2f}"
        )
        if value["_textbook"] < thresholds.OUTLIER_F1:
            return Verdict("not testable", f"the problem is too hard even for textbook pursuit: {why}")
        return by_heads(hits, len(f1.units), why)


@lru_cache(maxsize=1)  # all layers of a model have the same images
def _problem(tokens: int, width: int, seed: int, ids: tuple[str, ...]) -> tuple[planting.Planted, planting.Recovery]:
    planted = planting.plant(tokens, width, ids, seed=seed)
    return planted, planting.textbook(planted)


CLAIM = PlantedOutliers()
