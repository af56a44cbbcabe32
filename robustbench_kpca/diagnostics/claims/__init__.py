"""The claims, one file each; a new file is measured, judged and tested with the others.

A claim sees one layer on a block of images at a time and keeps nothing: what it returns is summed up elsewhere, so
memory does not grow with the images.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from scipy import stats
from torch import Tensor

from robustbench_kpca.diagnostics import thresholds
from robustbench_kpca.diagnostics.diagnosis import Finding, Measured, Outcome, Unit
from robustbench_kpca.diagnostics.layer import Layer
from robustbench_kpca.records.estimate import holm
from robustbench_kpca.registry import Family

CLAIMS = Family("claim", __name__, "CLAIM")

UNTESTABLE = (
    "too few images that share a block and have equally many tokens: no test could tell anything from chance (more "
    "images, or a larger block)"
)
ONE_IMAGE = "a single image: nothing can be compared image by image"


@dataclass(frozen=True)
class Statistic:
    """What a number says, and in which direction it speaks for the claim.

    A statistic with a `null` is observed for all pairs of images of a block, (images, images, heads): [i, j] takes from
    image i what the claim is about and from image j what the claim says it is, so that the diagonal is what was
    observed. Under the null no image's own theory fits it better than another's, and images may be permuted.

    One with `log10_of` is not observed: it is the logarithm of the arithmetic mean of that other statistic over heads
    and images or, of two, of the first mean over the second. Its units are layers: every head bears its layer's.
    """

    what: str
    better: Literal["more", "less", "neither"] = "neither"
    null: str = ""
    log10_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Results:
    """What all images showed together."""

    statistics: Mapping[str, Measured]
    profiles: Mapping[str, tuple[float, ...]]
    broken: str = ""
    """Where a statistic was no number, if anywhere: then there is no verdict."""


@dataclass(frozen=True)
class Verdict:
    """Whether the claim holds for the model, by which rule, and what others stated about the same numbers."""

    outcome: Outcome
    why: str
    findings: tuple[Finding, ...] = ()


@runtime_checkable
class Claim(Protocol):
    """One statement of a paper about attention layers, made measurable."""

    title: str
    source: str
    statistics: ClassVar[Mapping[str, Statistic]]
    profiles: ClassVar[Mapping[str, str]]

    def applies(self, layer: Layer) -> bool:
        """Tell whether the claim says anything about a layer."""
        ...

    def observe(self, layer: Layer) -> dict[str, Tensor]:
        """Return each statistic, (images, heads) or, with a null, (images, images, heads), and each profile.

        A profile is (images, heads, ranks). A statistic that says nothing in a layer of this shape is left out.
        """
        ...

    def verdict(self, results: Results) -> Verdict:
        """Judge by `thresholds`; is only asked where there was a layer to which the claim applies."""
        ...


def testable(measured: Measured) -> bool:
    """Tell whether a single head could pass Holm's adjustment with the images there were."""
    return measured.null is not None and measured.null.least_p * len(measured.units) <= thresholds.SIGNIFICANCE


def adjusted(unit: Unit) -> float:
    """Return Holm's adjusted p of a head; without a null nothing is significant."""
    return 1.0 if unit.p_holm is None else unit.p_holm


def heads_ahead(measured: Measured) -> list[bool]:
    """Tell for every head whether a difference that is taken image by image is above 0.

    By a one-sided paired t test (Gosset 1908), adjusted over the heads (Holm 1979).
    """
    n = measured.estimate.n
    if n < 2:
        return [False] * len(measured.units)
    p_values = []
    for unit in measured.units:
        error = unit.deviation / n**0.5
        p_values.append(float(stats.t.sf(unit.mean / error, n - 1)) if error > 0 else float(unit.mean <= 0))
    return [p <= thresholds.SIGNIFICANCE for p in holm(p_values)]
