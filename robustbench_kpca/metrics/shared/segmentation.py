"""From pixel counts to metrics: clean, under corruption, what is retained, and relative to another model.

A mean under corruption is over severities first and then over corruptions, so each corruption counts alike, however
many severities the protocol has of it. It is over all corruptions of the protocol, the four extra ones too: protocols
for segmentation choose their own sets.

Corruption degradation (Kamann & Rother 2020, "Benchmarking the Robustness of Semantic Segmentation Models",
arXiv:1908.05005; the formula as cited by others, not read there) against a reference model, D = 1 - mIoU:

    CD_c = sum_s D_{s,c} / sum_s D^ref_{s,c}                                                    CD = mean_c CD_c
    rCD_c = sum_s (D_{s,c} - D_clean) / sum_s (D^ref_{s,c} - D^ref_clean)                      rCD = mean_c rCD_c
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import Metric, Statistic, Weighted
from robustbench_kpca.metrics.shared.bootstrap import Weights
from robustbench_kpca.metrics.shared.pixels import Cell, Measure, Tally, fewest_right, miou
from robustbench_kpca.protocols.scenario import CLEAN_CELL, Scenario, Segmentation
from robustbench_kpca.records.estimate import Values
from robustbench_kpca.records.outcomes import Outcomes

MOVING = ("elastic_transform", "zoom_blur")
"""Corruptions that move what is seen, while masks stay as they are: even a perfect segmenter would be marked down."""
ENOUGH = 20  # images with a right pixel: with fewer, a resample may have none, and a ratio divides by 0
CLEAN = (CLEAN_CELL, 0)


def shares(cells: tuple[Cell, ...]) -> Values:
    """Return how much each cell counts in a mean over severities and then corruptions; clean cells count nothing."""
    severities = {name: sum(other == name for other, _ in cells) for name, _ in cells if name != CLEAN_CELL}
    weigh = {name: 1 / (len(severities) * number) for name, number in severities.items()}
    return np.array([weigh.get(name, 0.0) for name, _ in cells])


def weighted(tally: Tally, value: Callable[[Weights | None], Values]) -> Weighted:
    """Make what the bootstrap wants of `value`, which maps weights (resamples, n), or None, to values."""

    def once(weights: Weights | None) -> float:
        return float(value(None) if weights is None else value(weights[None])[0])

    return Weighted(tally.samples, once, many=value)


def of_clean(measure: Measure, **how: Any) -> Statistic:
    """Return a metric of the images as they are."""

    def of(outcomes: Outcomes) -> Weighted:
        tally = Tally.clean(outcomes)
        return weighted(tally, lambda weights: tally.levels(measure, weights)[..., 0])

    return Statistic(kinds=("segmentation", "segmentation-attack"), weighted=of, applies=_has_clean, **how)


def of_attacked(measure: Measure, worst: Callable[[Tally], NDArray[np.int64]] = fewest_right, **how: Any) -> Statistic:
    """Return a metric of the worst images that an attack found; which they are is not asked again in resamples."""

    def of(outcomes: Outcomes) -> Weighted:
        pictures = Tally.pictures(outcomes)
        tally = pictures.choose(worst(pictures))
        return weighted(tally, lambda weights: tally.levels(measure, weights)[..., 0])

    return Statistic(kinds=("segmentation-attack",), weighted=of, **how)


def of_corrupted(measure: Measure, without: tuple[str, ...] = (), **how: Any) -> Statistic:
    """Return the mean of a metric over corruptions, some left out."""

    def of(outcomes: Outcomes) -> Weighted:
        whole = Tally.of(outcomes)
        tally = whole.part([cell for cell in whole.cells if cell[0] not in (*without, CLEAN_CELL)])
        share = shares(tally.cells)
        return weighted(tally, lambda weights: (tally.levels(measure, weights) * share).sum(-1))

    def applies(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
        names = set(scenario.corruptions) if isinstance(scenario, Segmentation) else set()
        return bool(names - set(without)) and (not without or bool(names & set(without)))

    return Statistic(kinds=("segmentation",), weighted=of, applies=applies, **how)


def of_retained(measure: Measure, **how: Any) -> Statistic:
    """Return the mean of a metric over corruptions as a fraction of its clean value."""

    def of(outcomes: Outcomes) -> Weighted:
        tally = Tally.of(outcomes)
        share, clean = shares(tally.cells), tally.cells.index(CLEAN)

        def value(weights: Weights | None) -> Values:
            levels = tally.levels(measure, weights)
            return np.asarray((levels * share).sum(-1) / levels[..., clean])

        return weighted(tally, value)

    def applies(outcomes: Outcomes, scenario: Scenario) -> bool:
        if not (isinstance(scenario, Segmentation) and scenario.clean and scenario.grid):
            return False
        right = outcomes["sample"][(outcomes["severity"] == 0) & (outcomes["hits"] > 0)]
        return len(set(right.tolist())) >= ENOUGH

    return Statistic(kinds=("segmentation",), weighted=of, applies=applies, **how)


@dataclass(frozen=True, kw_only=True)
class Degradation(Statistic):
    """(Relative) corruption degradation: nothing by itself, and a number `relative_to` a reference."""

    relative: bool

    @classmethod
    def by_reference(cls, *, relative: bool, **how: Any) -> "Degradation":
        """Return the metric without its reference."""
        return cls(
            kinds=("segmentation",), lower_is_better=True, needs_reference=True, relative=relative,
            weighted=_no_reference, applies=_never, **how,
        )  # fmt: skip

    def relative_to(self, reference: Outcomes) -> Metric:
        """Divide by the errors of the model with these outcomes, which are taken as exact.

        Raises:
            BadInputError: its outcomes have no corruption, or no clean cell, or it makes no error there.

        """
        tally = Tally.of(reference)
        loss = _losses(tally.cells, tally.levels(miou), self.relative)
        odd = [name for name, value in loss.items() if value < 1e-9]
        if odd or not loss:
            what = "is no worse than on clean images" if self.relative else "makes no error"
            raise BadInputError(f"the reference model {what} under {', '.join(odd)}", fix="choose another reference")

        def of(outcomes: Outcomes) -> Weighted:
            own = Tally.of(outcomes)

            def value(weights: Weights | None) -> Values:
                found = _losses(own.cells, own.levels(miou, weights), self.relative)
                if set(found) != set(loss):
                    raise BadInputError("corruptions that the reference was not measured under", fix="measure it there")
                return np.asarray(np.mean([found[name] / loss[name] for name in found], axis=0))

            return weighted(own, value)

        return replace(self, weighted=of)


def _no_reference(outcomes: Outcomes) -> Weighted:  # noqa: ARG001
    raise BadInputError("a corruption degradation without a reference model", fix="name one: reference = 'MODEL'")


def _losses(cells: tuple[Cell, ...], levels: Values, relative: bool) -> dict[str, Values]:
    """Return the mean error over severities by corruption, less the clean one if relative."""
    if relative and CLEAN not in cells:
        raise BadInputError("no clean images to be relative to", fix="set clean = true")
    base = 1 - levels[..., cells.index(CLEAN)] if relative else 0.0
    names = [name for name in dict.fromkeys(name for name, _ in cells) if name != CLEAN_CELL]
    of = {name: [at for at, (other, _) in enumerate(cells) if other == name] for name in names}
    return {name: np.asarray((1 - levels[..., places]).mean(-1) - base) for name, places in of.items()}


def _never(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    return False


def _has_clean(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    return not isinstance(scenario, Segmentation) or scenario.clean
