"""The study's comparison of V with V_theory on images: raw keys, axes by absolute eigenvalue.

Source: Sarıtaş & Yıldız (2025), arXiv:2505.07908. One of their findings is that all three headline numbers are small;
without their chance level, which the corrected claim `value_vectors` gives.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from torch import Tensor

from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict
from robustbench_kpca.study.diagnostics.diagnosis import Finding, finding
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.saritas2025 import _gram
from robustbench_kpca.study.diagnostics.saritas2025._gram import SIMILARITIES, similarities


class StudyValueVectors:
    """Twelve similarities of V and V_theory = G A - G 1_N A, G = diag(1 / g)."""

    title = "The study's protocol: value vectors on images"
    source = _gram.SOURCE
    statistics: ClassVar[Mapping[str, Statistic]] = SIMILARITIES
    profiles: ClassVar[Mapping[str, str]] = {}

    applies = staticmethod(Layer.has_values)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Compare head by head."""
        return _gram.head_by_head(layer, partial(self.measure, layer))

    def measure(self, layer: Layer, image: int, head: int) -> dict[str, Tensor]:
        """Return the similarities of one head."""
        gram, g = _gram.centred_gram(layer.k[image, head])
        theory = _gram.theoretical_values(_gram.axes_by_size(gram, layer.width), 1 / g)
        return similarities(layer.values[image, head], theory)

    def verdict(self, results: Results) -> Verdict:
        """Return no verdict, and the comparison with the published numbers."""
        return _gram.not_judged(published(results))


def published(results: Results) -> tuple[Finding, ...]:
    """Compare with the three numbers of the study's abstract."""
    limits = (("matching_cosine", 0.32), ("linear_cka", 0.11), ("kernel_cka", 0.32))
    return tuple(
        finding(f"{name.replace('_', ' ')} at most {most}", f"{_gram.SOURCE}, abstract", name,
                results.statistics[name].estimate, least=None, most=most)
        for name, most in limits
    )  # fmt: skip


CLAIM = StudyValueVectors()
