"""Claim: the pursuit splits the keys, K = L + S after its last iteration.

Source: Teo & Nguyen (2024), arXiv:2406.13762, section 3: principal component pursuit, with the constraint L + S = K.
The pursuit replaces its singular-value step by attention, so nothing enforces the constraint; its residual is measured.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, by_heads, heads_ahead
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.pursuits import pursues, residual, traces


class Decomposition:
    """Compares the residual of the split with those for random keys and for plain attention, which should be larger."""

    title = "The pursuit splits the keys: K = L + S"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, section 3, Definition 1"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "residual": Statistic("|K - L - S| / |K| after the last iteration; 0 for an exact split", "less"),
        "residual_random": Statistic("the same for Gaussian keys and values with the head's scale"),
        "residual_unpursued": Statistic("the same with L of plain attention and S = 0"),
        "residual_saved": Statistic("residual of plain attention minus that of the pursuit", "more"),
    }
    profiles: ClassVar[Mapping[str, str]] = {
        "residual_by_iteration": "|K - L - S| / |K| by iteration",
        "residual_by_iteration_random": "the same for Gaussian keys and values",
    }

    applies = staticmethod(pursues)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Run the layer's pursuit on its own keys and on random ones."""
        pursued = traces(layer)
        measured = pursued.last(residual, "residual")
        saved = {"residual_saved": measured["residual_unpursued"] - measured["residual"]}
        return measured | saved | pursued.by_iteration(residual, "residual")

    def verdict(self, results: Results) -> Verdict:
        """Supported if enough heads have a small residual, and a smaller one than plain attention."""
        measured, saved = results.statistics["residual"], results.statistics["residual_saved"]
        small = [unit.mean <= thresholds.SPLIT_RESIDUAL for unit in measured.units]
        split = sum(part and ahead for part, ahead in zip(small, heads_ahead(saved), strict=True))
        plain = results.statistics["residual_unpursued"].estimate.value
        why = (
            f"{split} of {len(measured.units)} heads have |K - L - S| / |K| <= {thresholds.SPLIT_RESIDUAL} and "
            f"less than plain attention (Holm's p <= {thresholds.SIGNIFICANCE}; {sum(small)} without this comparison); "
            f"{thresholds.HEADS_SHARE:.0%} are needed. Mean {measured.estimate.value:.3f}, plain attention {plain:.3f}"
        )
        return by_heads(split, len(measured.units), why, paired=saved)


CLAIM = Decomposition()
