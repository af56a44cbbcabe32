"""The study's comparison of V with V_theory on texts: padding counts as tokens, axes are the last ones of `eigh`.

Source: Sarıtaş & Yıldız (2025), arXiv:2505.07908.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.saritas2025._gram import (
    SMALL,
    SOURCE,
    centred_gram,
    head_by_head,
    last_axes,
    not_judged,
    theoretical_values,
)
from robustbench_kpca.study.diagnostics.saritas2025._similarity import SIMILARITIES, similarities
from robustbench_kpca.study.diagnostics.saritas2025.study_value_vectors import published


class StudyTextValueVectors:
    """Twelve similarities of V and V_theory = G A - G 1_N A, G = diag(1 / (g + 1e-6))."""

    title = "The study's protocol: value vectors on texts"
    source = SOURCE
    statistics: ClassVar[Mapping[str, Statistic]] = SIMILARITIES
    profiles: ClassVar[Mapping[str, str]] = {}

    applies = staticmethod(Layer.has_values)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Compare head by head."""
        if layer.k.shape[-2] < layer.width:
            met = f"texts of {layer.k.shape[-2]} tokens for heads of width {layer.width}"
            raise BadInputError(met, expected="at least as many tokens, since V_theory has a column for every axis")

        def measure(image: int, head: int) -> dict[str, Tensor]:
            gram, g = centred_gram(layer.k[image, head])
            theory = theoretical_values(last_axes(gram, layer.width), 1 / (g + SMALL))
            return similarities(layer.values[image, head], theory, nan_is_zero=True)

        return head_by_head(layer, measure)

    def verdict(self, results: Results) -> Verdict:
        """Return no verdict, and the comparison with the published numbers."""
        return not_judged(published(results))


CLAIM = StudyTextValueVectors()
