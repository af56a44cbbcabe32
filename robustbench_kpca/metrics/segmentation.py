"""Metrics of segmentation: clean, under attack, under corruption, and relative to another model.

The equations of pixel accuracy, mean accuracy and mIoU are in `shared.pixels`. A mean under corruption is over
severities first and then over corruptions, so each corruption has the same weight, however many severities the protocol
has of it. It is over all corruptions of the protocol, the four extra ones too: protocols for scenes choose their own.

Corruption degradation (Kamann & Rother 2020, "Benchmarking the Robustness of Semantic Segmentation Models",
arXiv:1908.05005; the formula as cited by others, not read there) against a reference model, D = 1 - mIoU:

    CD_c = sum_s D_{s,c} / sum_s D^ref_{s,c}                                                    CD = mean_c CD_c
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Metric, Statistic, Weighted
from robustbench_kpca.metrics.shared import pixels
from robustbench_kpca.metrics.shared.bootstrap import Weights
from robustbench_kpca.metrics.shared.metric import has_clean
from robustbench_kpca.protocols.scenario import CLEAN_CELL, Corruption, Scenario
from robustbench_kpca.records.estimate import Values
from robustbench_kpca.records.outcomes import Outcomes

MOVING = ("elastic_transform", "zoom_blur")
"""Corruptions that move objects while masks stay as they are: even a perfect segmenter would lose."""
ENOUGH = 20  # images with a right pixel: with fewer, a resample may have none, and a ratio divides by 0
CLEAN = (CLEAN_CELL, 0)


def _weighted(counts: pixels.PixelCounts, value: Callable[[Weights | None], Values]) -> Weighted:
    """Prepare `value`, which maps weights (resamples, n), or None, to values, for the bootstrap."""

    def once(weights: Weights | None) -> float:
        return float(value(None) if weights is None else value(weights[None])[0])

    return Weighted(counts.samples, once, many=value)


def _clean(measure: pixels.Measure, **how: Any) -> Statistic:
    """Return a metric of the images as they are."""

    def of(outcomes: Outcomes) -> Weighted:
        counts = pixels.PixelCounts.clean(outcomes)
        return _weighted(counts, lambda weights: counts.levels(measure, weights)[..., 0])

    return Statistic(
        task="segmentation",
        unit=PERCENT,
        kinds=("clean", "corruption", "attack"),
        weighted=of,
        applies=has_clean,
        share=True,
        **how,
    )


def _attacked(
    measure: pixels.Measure, pick: Callable[[pixels.PixelCounts], NDArray[np.int64]] = pixels.fewest_right, **how: Any
) -> Statistic:
    """Return a metric of the worst images that an attack found; resamples use the same worst images."""

    def of(outcomes: Outcomes) -> Weighted:
        pictures = pixels.PixelCounts.pictures(outcomes)
        counts = pictures.choose(pick(pictures))
        return _weighted(counts, lambda weights: counts.levels(measure, weights)[..., 0])

    return Statistic(task="segmentation", unit=PERCENT, kinds=("attack",), weighted=of, share=True, **how)


def _corrupted(measure: pixels.Measure, without: tuple[str, ...] = (), **how: Any) -> Statistic:
    """Return the mean of a metric over corruptions, some left out."""

    def of(outcomes: Outcomes) -> Weighted:
        whole = pixels.PixelCounts.of(outcomes)
        counts = whole.part([cell for cell in whole.cells if cell[0] not in (*without, CLEAN_CELL)])
        share = pixels.shares(counts.cells)
        return _weighted(counts, lambda weights: (counts.levels(measure, weights) * share).sum(-1))

    def applies(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
        names = set(scenario.names) if isinstance(scenario, Corruption) else set()
        return bool(names - set(without)) and (not without or bool(names & set(without)))

    return Statistic(
        task="segmentation",
        unit=PERCENT,
        kinds=("corruption",),
        weighted=of,
        applies=applies,
        share=True,
        **how,
    )


def _retained(measure: pixels.Measure, **how: Any) -> Statistic:
    """Return the mean of a metric over corruptions as a fraction of its clean value."""

    def of(outcomes: Outcomes) -> Weighted:
        counts = pixels.PixelCounts.of(outcomes)
        share, clean = pixels.shares(counts.cells), counts.cells.index(CLEAN)

        def value(weights: Weights | None) -> Values:
            levels = counts.levels(measure, weights)
            return np.asarray((levels * share).sum(-1) / levels[..., clean])

        return _weighted(counts, value)

    def applies(outcomes: Outcomes, scenario: Scenario) -> bool:
        if not (isinstance(scenario, Corruption) and scenario.clean):
            return False
        right = outcomes["sample"][(outcomes["severity"] == 0) & (outcomes["intersection"] > 0)]
        return len(set(right.tolist())) >= ENOUGH

    return Statistic(task="segmentation", unit=PERCENT, kinds=("corruption",), weighted=of, applies=applies, **how)


@dataclass(frozen=True, kw_only=True)
class Degradation(Statistic):
    """Corruption degradation. It has a value only `relative_to` a reference."""

    @classmethod
    def by_reference(cls, **how: Any) -> "Degradation":
        """Return the metric without its reference."""
        return cls(
            task="segmentation", unit=PERCENT, kinds=("corruption",), lower_is_better=True, needs_reference=True,
            weighted=_no_reference, applies=_never, **how,
        )  # fmt: skip

    def relative_to(self, reference: Outcomes) -> Metric:
        """Divide by the errors of the model with these outcomes, which are taken as exact.

        Raises:
            BadInputError: its outcomes have no corruption, or it makes no error there.
        """
        counts = pixels.PixelCounts.of(reference)
        loss = _losses(counts.cells, counts.levels(pixels.miou))
        faultless = [name for name, value in loss.items() if value < 1e-9]
        if faultless or not loss:
            problem = f"the reference model makes no error under {', '.join(faultless)}"
            raise BadInputError(problem, fix="choose another reference")

        def of(outcomes: Outcomes) -> Weighted:
            of_model = pixels.PixelCounts.of(outcomes)

            def value(weights: Weights | None) -> Values:
                own_loss = _losses(of_model.cells, of_model.levels(pixels.miou, weights))
                if set(own_loss) != set(loss):
                    raise BadInputError("corruptions that the reference was not measured under", fix="measure it there")
                return np.asarray(np.mean([own_loss[name] / loss[name] for name in own_loss], axis=0))

            return _weighted(of_model, value)

        return replace(self, weighted=of)


def _no_reference(outcomes: Outcomes) -> Weighted:  # noqa: ARG001
    raise BadInputError("a corruption degradation without a reference model", fix="name one: reference = 'MODEL'")


def _losses(cells: tuple[pixels.Cell, ...], levels: Values) -> dict[str, Values]:
    """Return the mean error over severities by corruption."""
    names = [name for name in dict.fromkeys(name for name, _ in cells) if name != CLEAN_CELL]
    of = {name: [at for at, (other, _) in enumerate(cells) if other == name] for name in names}
    return {name: np.asarray((1 - levels[..., places]).mean(-1)) for name, places in of.items()}


def _never(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    return False


METRICS = (
    _clean(
        pixels.pixel_accuracy,
        name="pixel_accuracy",
        title="Pixel accuracy",
        what="Pixel accuracy: the share of pixels that are classified correctly, on the images as they are.",
    ),
    _clean(
        pixels.mean_accuracy,
        name="mean_accuracy",
        title="Mean accuracy over classes",
        what="Mean accuracy: the share of a class's pixels that are classified correctly, averaged over classes.",
    ),
    _clean(
        pixels.miou,
        name="miou",
        title="mIoU",
        what="mIoU: intersection over union of each class over all images together, averaged over classes.",
    ),
    _attacked(
        pixels.pixel_accuracy,
        name="robust_pixel_accuracy",
        title="Robust pixel accuracy",
        what="Robust pixel accuracy: the share of pixels that are classified correctly in the worst image the attack "
        "found.",
        unattacked="pixel_accuracy",
    ),
    _attacked(
        pixels.mean_accuracy,
        name="robust_mean_accuracy",
        title="Robust mean accuracy over classes",
        what="Robust mean accuracy over classes: of the worst image the attack found for each one, by its pixel "
        "accuracy.",
        unattacked="mean_accuracy",
    ),
    _attacked(
        pixels.miou,
        name="robust_miou",
        title="Robust mIoU",
        what="Robust mIoU: over the worst image the attack found for each one, by its pixel accuracy.",
        unattacked="miou",
    ),
    _attacked(
        pixels.miou,
        pixels.worst_for_miou,
        name="worst_miou",
        title="Worst-case mIoU",
        what="Worst-case mIoU: over the images, one of each, that together make it low: the number that SEA reports.",
    ),
    _corrupted(
        pixels.pixel_accuracy,
        name="corrupted_pixel_accuracy",
        title="Pixel accuracy under corruption",
        what="Pixel accuracy under corruption: the mean over severities, then over corruptions.",
    ),
    _corrupted(
        pixels.mean_accuracy,
        name="corrupted_mean_accuracy",
        title="Mean accuracy over classes under corruption",
        what="Mean accuracy over classes under corruption: the mean over severities, then over corruptions.",
    ),
    _corrupted(
        pixels.miou,
        name="corrupted_miou",
        title="mIoU under corruption",
        what="mIoU under corruption: computed in every cell on its own, then the mean over severities and over "
        "corruptions.",
    ),
    # `glass_blur` stays in: it swaps pixels with neighbours a few pixels away, at random, and moves no object.
    _corrupted(
        pixels.miou,
        MOVING,
        name="corrupted_miou_still",
        title="mIoU under corruptions that move nothing",
        what="mIoU under the corruptions that leave everything in its place: without `elastic_transform` and "
        "`zoom_blur`.",
    ),
    _retained(
        pixels.miou,
        name="miou_retention",
        title="Retention of mIoU (corrupted / clean)",
        what="Retention of mIoU: under corruption, as a fraction of the clean one (FAN; Zhou et al. 2022, "
        "arXiv:2204.12451).",
    ),
    Degradation.by_reference(
        name="corruption_degradation",
        title="CD",
        what="Corruption degradation (CD): 1 - mIoU under each corruption as a fraction of a reference model's; then "
        "the mean.",
    ),
)
