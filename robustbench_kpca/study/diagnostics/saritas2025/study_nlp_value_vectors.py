"""The study's comparison of V with V_theory on texts: padding counts as tokens, axes are the last ones of `eigh`.

Source: Sarıtaş & Yıldız (2025), arXiv:2505.07908.
"""

from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.saritas2025._gram import (
    SMALL,
    centred_gram,
    last_axes,
    similarities,
    theoretical_values,
)
from robustbench_kpca.study.diagnostics.saritas2025.study_value_vectors import StudyValueVectors


class StudyTextValueVectors(StudyValueVectors):
    """As on images, but with G = diag(1 / (g + 1e-6))."""

    title = "The study's protocol: value vectors on texts"

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Compare head by head."""
        if layer.k.shape[-2] < layer.width:
            met = f"texts of {layer.k.shape[-2]} tokens for heads of width {layer.width}"
            raise BadInputError(met, expected="at least as many tokens, since V_theory has a column for every axis")
        return super().observe(layer)

    def measure(self, layer: Layer, image: int, head: int) -> dict[str, Tensor]:
        """Return the similarities of one head."""
        gram, g = centred_gram(layer.k[image, head])
        theory = theoretical_values(last_axes(gram, layer.width), 1 / (g + SMALL))
        return similarities(layer.values[image, head], theory, nan_is_zero=True)


CLAIM = StudyTextValueVectors()
