"""The claims, one file each; a new file is measured, judged and tested with the others.

A claim observes one layer on one block of images at a time and stores nothing: its results are summed by `Totals`, so
memory does not grow with the number of images.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from scipy import stats
from torch import Tensor

from robustbench_kpca.records.estimate import holm
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.diagnosis import Finding, Measured, Outcome, Profile, Unit
from robustbench_kpca.study.diagnostics.layer import Layer

UNTESTABLE = "too few images per block: no test can reach significance (use more images, or a larger block)"
ONE_IMAGE = "a single image: a comparison image by image is impossible"


@dataclass(frozen=True)
class Statistic:
    """Description of a statistic, and the direction in which it supports the claim.

    A statistic with a `null` is observed for all pairs of images of a block, (images, images, heads): [i, j] compares
    the measured quantity of image i with the prediction for image j, so the diagonal is the observed value. Under the
    null model an image's own prediction fits no better than another image's, so the images may be permuted.

    A statistic with `log10_of` is derived: the logarithm of the arithmetic mean of that statistic over heads and images
    or, for two, of the ratio of the first mean to the second. It has one value per layer, repeated for each head.
    """

    what: str
    better: Literal["more", "less", "neither"] = "neither"
    null: str = ""
    log10_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Results:
    """Statistics and profiles over all images."""

    statistics: Mapping[str, Measured]
    profiles: Mapping[str, Profile]
    broken: str = ""
    """Describes a failure, such as a NaN statistic; if not empty, there is no verdict."""


@dataclass(frozen=True)
class Verdict:
    """Whether the claim holds for the model, the rule used, and a comparison with published numbers."""

    outcome: Outcome
    why: str
    findings: tuple[Finding, ...] = ()


@runtime_checkable
class Claim(Protocol):
    """A measurable statement of a paper about attention layers."""

    title: str
    source: str
    statistics: ClassVar[Mapping[str, Statistic]]
    profiles: ClassVar[Mapping[str, str]]

    def applies(self, layer: Layer) -> bool:
        """Return whether the claim applies to a layer."""
        ...

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Return each statistic, (images, heads) or, with a null, (images, images, heads), and each profile.

        A profile is (images, heads, ranks). A statistic or profile without a meaning for these images is left out.
        """
        ...

    def verdict(self, results: Results) -> Verdict:
        """Return the verdict by `thresholds`; called only if the claim applies to at least one layer."""
        ...


def by_heads(
    count: int, heads: int, why: str, findings: tuple[Finding, ...] = (), *, paired: Measured | None = None
) -> Verdict:
    """Return the verdict on a property that `count` heads have: supported if these are enough.

    `paired`: what was compared image by image, if the property needs that: not testable on a single image.
    """
    if paired is not None and paired.estimate.n < 2:
        return Verdict("not testable", f"{ONE_IMAGE}. {why}", findings)
    return Verdict("supported" if count >= thresholds.HEADS_SHARE * heads else "not supported", why, findings)


def untestable(measured: Measured) -> str:
    """Say why no single head could be significant after Holm's adjustment, given the number of images; else ""."""
    if measured.null is not None and measured.null.least_p * len(measured.units) <= thresholds.SIGNIFICANCE:
        return ""
    return UNTESTABLE


def adjusted(unit: Unit) -> float:
    """Return the p of a head after Holm's adjustment; 1 without a null model."""
    return 1.0 if unit.p_holm is None else unit.p_holm


def heads_ahead(measured: Measured) -> list[bool]:
    """Return for every head whether a difference, measured image by image, is significantly above 0.

    Uses a one-sided paired t test (Gosset 1908), adjusted over the heads (Holm 1979).
    """
    n = measured.estimate.n
    if n < 2:
        return [False] * len(measured.units)
    p_values = []
    for unit in measured.units:
        error = unit.deviation / n**0.5
        p_values.append(float(stats.t.sf(unit.mean / error, n - 1)) if error > 0 else float(unit.mean <= 0))
    return [p <= thresholds.SIGNIFICANCE for p in holm(p_values)]
