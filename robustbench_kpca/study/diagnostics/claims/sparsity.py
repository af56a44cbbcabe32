"""Claim: the pursuit's S is sparse, but not empty.

Source: Teo & Nguyen (2024), arXiv:2406.13762, section 3: S is the sparse corruption that is removed from the keys.
If S is empty, nothing was removed, and the claim is not testable.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from robustbench_kpca.attention.rpc import Iterate
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, by_heads, heads_ahead
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.pursuits import PerHead, density, pursues, size, traces


class Sparsity:
    """Counts the nonzero entries of S by iteration, compared with random keys."""

    title = "The pursuit's S is sparse"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, section 3"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "density": Statistic("share of entries of S that are not 0, last iteration", "less"),
        "density_random": Statistic("the same for Gaussian keys and values with the head's scale"),
        "density_saved": Statistic("density for random keys minus that for the layer's keys", "more"),
        "empty": Statistic("share of images in which S is empty, last iteration"),
        "empty_random": Statistic("share of images in which S of random keys is empty"),
        "size": Statistic("|S| / |K|, last iteration"),
        "size_random": Statistic("the same for Gaussian keys and values"),
    }
    profiles: ClassVar[Mapping[str, str]] = {
        "density_by_iteration": "share of entries of S that are not 0, by iteration",
        "density_by_iteration_random": "the same for Gaussian keys and values",
    }

    applies = staticmethod(pursues)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Run the layer's pursuit on its own keys and on random ones."""
        pursued = traces(layer)
        last, random = pursued.own[-1], pursued.random[-1]
        return {
            "density": density(last),
            "density_random": density(random),
            "density_saved": density(random) - density(last),
            "empty": (density(last) == 0).double(),
            "empty_random": (density(random) == 0).double(),
            "size": relative_size(last),
            "size_random": relative_size(random),
        } | pursued.by_iteration(density, "density")

    def verdict(self, results: Results) -> Verdict:
        """Supported if, in enough heads, S is sparse, not empty, and sparser than for random keys.

        The comparison is not needed if S of random keys is empty. Not testable if S is mostly empty.
        """
        pairs = zip(results.statistics["density"].units, results.statistics["empty"].units, strict=True)
        heads = [(dense.mean, empty.mean) for dense, empty in pairs]
        filled = sum(empty < 1 - thresholds.HEADS_SHARE for _, empty in heads)
        sparse_heads = [mean <= thresholds.SPARSE and empty < 1 - thresholds.HEADS_SHARE for mean, empty in heads]
        saved = results.statistics["density_saved"]
        spared = [unit.mean >= thresholds.HEADS_SHARE for unit in results.statistics["empty_random"].units]
        beats = [ahead or spares for ahead, spares in zip(heads_ahead(saved), spared, strict=True)]
        sparse = sum(is_sparse and beaten for is_sparse, beaten in zip(sparse_heads, beats, strict=True))
        why = (
            f"{sparse} of {len(heads)} heads have an S with at most {thresholds.SPARSE:.0%} nonzero entries, not empty "
            f"in most images, and sparser than for random keys (Holm's p <= {thresholds.SIGNIFICANCE}) unless that is "
            f"empty ({sum(sparse_heads)} without this comparison); in {len(heads) - filled} S is empty in most images; "
            f"{thresholds.HEADS_SHARE:.0%} are needed. Mean density "
            f"{results.statistics['density'].estimate.value:.4f}, random keys "
            f"{results.statistics['density_random'].estimate.value:.4f}"
        )
        if filled < thresholds.HEADS_SHARE * len(heads):
            return Verdict("not testable", f"{why}. Where S is empty, nothing was removed from the keys")
        return by_heads(sparse, len(heads), why, paired=saved)


def relative_size(step: Iterate) -> PerHead:
    """Return ||S||_F / ||K||_F."""
    return size(step.sparse) / size(step.k).clamp_min(1e-300)


CLAIM = Sparsity()
