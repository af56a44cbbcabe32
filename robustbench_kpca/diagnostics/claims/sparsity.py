"""Whether the pursuit's S is sparse, and whether there is anything in it.

Claim: Teo & Nguyen (2024), arXiv:2406.13762, section 3: S is the sparse corruption that is taken out of the keys. An
empty S is sparse, too, but then nothing was taken out, and there is nothing to judge.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from robustbench_kpca.attention.rpc import Iterate
from robustbench_kpca.diagnostics import thresholds
from robustbench_kpca.diagnostics.claims import ONE_IMAGE, Results, Statistic, Verdict, heads_ahead
from robustbench_kpca.diagnostics.layer import Layer
from robustbench_kpca.diagnostics.pursuits import PerHead, density, pursues, size, traces


class Sparsity:
    """Counts the entries of S, iteration by iteration, beside those for random keys."""

    title = "The pursuit's S is sparse"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, section 3"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "density": Statistic("share of entries of S that are not 0, last iteration", "less"),
        "density_random": Statistic("the same for Gaussian keys and values of the head's own sizes"),
        "density_saved": Statistic("that for random keys less the own one", "more"),
        "empty": Statistic("share of images in which S is empty, last iteration"),
        "empty_random": Statistic("share of images in which S of random keys is empty"),
        "size": Statistic("|S| / |K|, last iteration"),
        "size_random": Statistic("the same for Gaussian keys and values"),
    }
    profiles: ClassVar[Mapping[str, str]] = {
        "density_by_iteration": "share of entries of S that are not 0, by iteration",
        "density_by_iteration_random": "the same for Gaussian keys and values",
    }

    def applies(self, layer: Layer) -> bool:
        """Only where a pursuit runs."""
        return pursues(layer)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Run the layer's pursuit on its own keys and on random ones."""
        found = traces(layer)
        own, random = found.own[-1], found.random[-1]
        return {
            "density": density(own),
            "density_random": density(random),
            "density_saved": density(random) - density(own),
            "empty": (density(own) == 0).double(),
            "empty_random": (density(random) == 0).double(),
            "size": relative_size(own),
            "size_random": relative_size(random),
        } | found.by_iteration(density, "density")

    def verdict(self, results: Results) -> Verdict:
        """Supported if, in enough heads, S is sparse, and not empty, and sparser than of random keys.

        What is taken out where random keys lose nothing is the keys' own. Not testable if S mostly is empty.
        """
        pairs = zip(results.statistics["density"].units, results.statistics["empty"].units, strict=True)
        heads = [(dense.mean, empty.mean) for dense, empty in pairs]
        needed = thresholds.HEADS_SHARE * len(heads)
        filled = sum(empty < 1 - thresholds.HEADS_SHARE for _, empty in heads)
        few = [mean <= thresholds.SPARSE and empty < 1 - thresholds.HEADS_SHARE for mean, empty in heads]
        saved = results.statistics["density_saved"]
        spared = [unit.mean >= thresholds.HEADS_SHARE for unit in results.statistics["empty_random"].units]
        beats = [one or other for one, other in zip(heads_ahead(saved), spared, strict=True)]
        sparse = sum(one and other for one, other in zip(few, beats, strict=True))
        why = (
            f"{sparse} of {len(heads)} heads have an S with at most {thresholds.SPARSE:.0%} of its entries, and fewer "
            f"than of random keys (Holm's p <= {thresholds.SIGNIFICANCE}) if those have any ({sum(few)} whatever those "
            f"have), that is not empty in most images; {len(heads) - filled} have one that is; "
            f"{thresholds.HEADS_SHARE:.0%} would do. Mean density "
            f"{results.statistics['density'].estimate.value:.4f}, of random keys "
            f"{results.statistics['density_random'].estimate.value:.4f}"
        )
        if filled < needed:
            return Verdict("not testable", f"{why}. Where S is empty, nothing was taken out of the keys")
        if saved.estimate.n < 2:
            return Verdict("not testable", f"{ONE_IMAGE}. {why}")
        return Verdict("supported" if sparse >= needed else "not supported", why)


def relative_size(step: Iterate) -> PerHead:
    """Return ||S||_F / ||K||_F."""
    return size(step.sparse) / size(step.k).clamp_min(1e-300)


CLAIM = Sparsity()
