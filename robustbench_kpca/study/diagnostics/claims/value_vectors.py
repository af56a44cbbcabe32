"""Claim: the learned V equals V_theory = G (A - column means) of kernel PCA; compared with eight similarities.

Source: Teo & Nguyen (2024), arXiv:2406.13762, theorem 1. Objection and measures: Sarıtaş & Yıldız (2025),
arXiv:2505.07908.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from robustbench_kpca.study.diagnostics import similarity as s
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Results, Statistic, Verdict, adjusted, by_heads, untestable
from robustbench_kpca.study.diagnostics.diagnosis import Measured, finding
from robustbench_kpca.study.diagnostics.layer import Layer

_STUDY = "Sarıtaş & Yıldız (2025), arXiv:2505.07908, abstract, of ten vision transformers (197 tokens, width 64)"
_OTHER = (
    "V compared with V_theory of another image, same layer and head: similar singular values, smoothness over "
    "neighbouring tokens and arbitrary axes, but another image. Permuting tokens is no valid null (matching cosine is "
    "invariant, and neighbouring tokens are not independent), nor is rotating axes (CKA and subspace overlap are "
    "invariant)."
)
_SIGNS = " (depends on the arbitrary signs of the axes, chosen so that the entry of largest magnitude is positive)"
_LIMITS = {
    "linear_cka": thresholds.ALIGNED,
    "linear_cka_orthonormal": thresholds.ALIGNED,
    "subspace_overlap": thresholds.SUBSPACE,
}


class ValueVectors:
    """Compares V with V_theory, head by head, by measures that are invariant to rotations of the axes.

    The linear CKA depends on the lengths of the axes, which theorem 1 does not fix. So it is computed for two V_theory:
    with unit axes, as in the study, and with axes scaled for orthonormal features. For axes of any length there is the
    overlap of the column spaces, which is informative only if they do not fill the space of centred tokens: D < N - 1.
    A head counts if one of the three is above its limit.
    """

    title = "Value vectors are those of kernel PCA"
    source = "Teo & Nguyen (2024), arXiv:2406.13762, theorem 1"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "linear_cka": Statistic("linear CKA of V and V_theory", "more", _OTHER),
        "linear_cka_orthonormal": Statistic("linear CKA with V_theory of orthonormal features", "more", _OTHER),
        "kernel_cka": Statistic("CKA with RBF kernels of the median width", "more", _OTHER),
        "debiased_cka": Statistic("linear CKA without the bias from few tokens; near 0 by chance", "more", _OTHER),
        "subspace_overlap": Statistic(
            "mean squared cosine of the principal angles between the column spaces", "more", _OTHER
        ),
        "matching_cosine": Statistic(f"mean cosine under the best assignment of tokens{_SIGNS}", "more", _OTHER),
        "direct_cosine": Statistic(f"mean cosine, token by token{_SIGNS}", "more", _OTHER),
        "relative_frobenius": Statistic(f"|V - V_theory| / |V|, 1 where V is 0{_SIGNS}", "less", _OTHER),
        "median_angle": Statistic("median (the lower one) of the principal angles between the column spaces, degrees"),
        "rank": Statistic("number of the D theoretical axes above rounding error; the others are set to 0"),
    }
    profiles: ClassVar[Mapping[str, str]] = {}

    applies = staticmethod(Layer.has_values)

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Compare every image's V with every image's V_theory; subspaces only if D < N - 1."""
        v = layer.values
        theory, log_scale = layer.spectrum.theoretical_values(layer.width)
        scaled, _ = layer.spectrum.orthonormal_values(layer.width)
        gram = s.linear_gram(v)
        subspaces: dict[str, Tensor] = {}
        if layer.width < v.shape[-2] - 1:
            ours, theirs = s.basis(v), s.basis(theory)
            projectors = [basis @ basis.transpose(-2, -1) for basis in (ours, theirs)]
            subspaces = {
                "subspace_overlap": s.cosines(*projectors),
                "median_angle": s.principal_angles(ours, theirs).median(-1).values,
            }
        return subspaces | {
            "linear_cka": s.cosines(gram, s.linear_gram(theory)),
            "linear_cka_orthonormal": s.cosines(gram, s.linear_gram(scaled)),
            "kernel_cka": s.cosines(s.kernel_gram(v), s.kernel_gram(theory)),
            "debiased_cka": s.cosines(s.debiased_gram(v), s.debiased_gram(theory)),
            "matching_cosine": s.matching_cosine(v, theory),
            "direct_cosine": s.direct_cosine(v, theory),
            "relative_frobenius": s.relative_frobenius(v, theory, log_scale),
            "rank": layer.spectrum.rank.clamp_max(layer.width),
        }

    def verdict(self, results: Results) -> Verdict:
        """Supported if enough heads are similar to V_theory, significantly more than by chance (Holm)."""
        measured = {name: results.statistics[name] for name in _LIMITS if name in results.statistics}
        plain = measured["linear_cka"]
        findings = tuple(
            finding(f"{name.replace('_', ' ')} at most {most}", _STUDY, name, estimate, least=None, most=most)
            for name, most in (("matching_cosine", 0.32), ("linear_cka", 0.11), ("kernel_cka", 0.32))
            for estimate in [results.statistics[name].estimate]
        )
        if never := untestable(plain):
            return Verdict("not testable", never, findings)
        aligned: set[tuple[int, int]] = set()
        for name, similarity in measured.items():
            aligned |= _beyond(similarity, _LIMITS[name])
        heads, above = len(plain.units), len(_beyond(plain, -1.0))
        overlap = (
            f"or a subspace overlap >= {thresholds.SUBSPACE}"
            if "subspace_overlap" in measured
            else "(the subspaces fill the whole space, so their overlap proves nothing)"
        )
        why = (
            f"{len(aligned)} of {heads} heads have a linear CKA >= {thresholds.ALIGNED} with axes of either scaling "
            f"{overlap}, above chance (Holm's p <= {thresholds.SIGNIFICANCE}); {thresholds.HEADS_SHARE:.0%} of the "
            f"heads are needed. {above} are above chance in linear CKA"
        )
        return by_heads(len(aligned), heads, why, findings)


def _beyond(measured: Measured, least: float) -> set[tuple[int, int]]:
    """Return the heads with a statistic significantly above chance and at least `least`."""
    return {
        (unit.layer, unit.head)
        for unit in measured.units
        if adjusted(unit) <= thresholds.SIGNIFICANCE and unit.mean >= least
    }


CLAIM = ValueVectors()
