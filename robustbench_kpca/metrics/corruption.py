"""Accuracy and errors of classifiers under corruption, absolute and relative to a reference model.

Source: Hendrycks & Dietterich (2019), "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
arXiv:1903.12261, section 4. With E a top-1 error in [0, 1], c a corruption and s a severity:

    CE_c          =  sum_s E_{s,c} / sum_s E^ref_{s,c}                                          mCE = mean_c CE_c
    relative CE_c = (mean_s E_{s,c} - E_clean) / (mean_s E^ref_{s,c} - E^ref_clean)    relative mCE = mean_c of these

All are fractions: 1.0 is as bad as the reference (for ImageNet-C AlexNet), which tables print as 100. The unnormalised
mean error, mean_{c,s} E_{s,c}, is not mCE, though it has been published under that name. Means over corruptions leave
out the four extra ones. Relative CE is unstable where the reference hardly degrades (AlexNet on brightness: by 0.13),
so show it for each corruption beside its mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Mean, Metric, Scores, Statistic, Weighted
from robustbench_kpca.metrics.shared.error_table import ALEXNET, CorruptionGrid, ErrorTable, PerCorruption
from robustbench_kpca.protocols.corruption_names import COMMON, SEVERITIES, counted
from robustbench_kpca.protocols.scenario import Corruption, Scenario
from robustbench_kpca.records.estimate import Estimate, Values, bootstrap_mean
from robustbench_kpca.records.outcomes import Outcomes

ENOUGH = 20  # right clean answers: with fewer, a resample may have none, and the ratio divides by 0


def mean_errors(table: ErrorTable) -> PerCorruption:
    """Mean error over severities, by corruption."""
    return table.mean_by_corruption(table.corruptions, table.severities)


def corruption_errors(table: ErrorTable, reference: ErrorTable) -> PerCorruption:
    """CE by corruption, as a fraction of the reference's error.

    Raises:
        BadInputError: the reference has no error for a corruption, or an error of 0.
    """
    scale = _scale(table.corruptions, table.severities, reference)
    return {name: error / scale[name] for name, error in mean_errors(table).items()}


def relative_corruption_errors(table: ErrorTable, reference: ErrorTable) -> PerCorruption:
    """Relative CE by corruption: the loss of accuracy as a fraction of the reference's loss. May be negative.

    Raises:
        BadInputError: a clean error is missing, or the reference does not degrade.
    """
    scale = _scale(table.corruptions, table.severities, reference, relative=True)
    return {name: (error - table.required_clean()) / scale[name] for name, error in mean_errors(table).items()}


def retention(corrupted: Values, clean: NDArray[np.bool_], weights: NDArray[np.int64] | None = None) -> Values:
    """Return accuracy under corruption as a fraction of clean accuracy.

    Args:
        corrupted: accuracy of each image over its corrupted versions, `1 - mean_error_scores`, shape (n,).
        clean: whether each image uncorrupted is classified correctly, `~clean_wrong`, shape (n,).
        weights: times that each image counts, shape (n,), or (resamples, n) for a number of each; by default once.

    Raises:
        BadInputError: the clean accuracy is 0.
    """
    counts = np.ones(len(clean)) if weights is None else weights.astype(np.float64)
    base = counts @ clean
    if (base == 0).any():
        raise BadInputError("a clean accuracy of 0", expected="some clean image classified correctly")
    return np.asarray(counts @ corrupted / base)


def mean_error_scores(grid: CorruptionGrid) -> Values:
    """One score per image, shape (n,): its share of wrong cells. Their mean is the unnormalised mean error."""
    names = counted(grid.corruptions)
    return _combine(grid, dict.fromkeys(names, 1 / len(names)))


def mce_scores(grid: CorruptionGrid, reference: ErrorTable) -> Values:
    """One score per image, shape (n,), >= 0, whose mean is mCE: mCE is linear in the errors.

        score_i = 1/C sum_c [ sum_s e_{i,s,c} / sum_s E^ref_{s,c} ],   e = 1 where image i is wrong

    Raises:
        BadInputError: as `corruption_errors`.
    """
    scale = _scale(counted(grid.corruptions), grid.severities, reference)
    return _combine(grid, {name: 1 / (len(scale) * divisor) for name, divisor in scale.items()})


def relative_mce_scores(grid: CorruptionGrid, reference: ErrorTable) -> Values:
    """One score per image, shape (n,), of either sign, whose mean is relative mCE. Raises as its CEs do."""
    grid.table("the model").required_clean()
    assert grid.clean_wrong is not None
    scale = _scale(counted(grid.corruptions), grid.severities, reference, relative=True)
    shares = {name: 1 / (len(scale) * divisor) for name, divisor in scale.items()}
    return _combine(grid, shares) - sum(shares.values()) * grid.clean_wrong


def _combine(grid: CorruptionGrid, shares: Mapping[str, float]) -> Values:
    """Weigh each image's error over severities, by corruption."""
    row = np.array([shares.get(name, 0.0) for name in grid.corruptions])
    return np.asarray(grid.wrong.mean(axis=2) @ row)


def _scale(
    corruptions: Sequence[str], severities: Sequence[int], reference: ErrorTable, relative: bool = False
) -> PerCorruption:
    """Return what (relative) CE divides by. One wrong image is the least error; what is smaller is rounding."""
    base = reference.required_clean() if relative else 0.0
    scale = {name: mean - base for name, mean in reference.mean_by_corruption(corruptions, severities).items()}
    unusable = [name for name, value in scale.items() if value < 1e-9]
    if unusable:
        what = "is no worse than on clean images" if relative else "makes no error"
        raise BadInputError(f"{reference.name} {what} under {', '.join(unusable)}", fix="choose another reference")
    return scale


@dataclass(frozen=True, kw_only=True)
class RelativeError(Mean):
    """A mean of per-sample scores that depend on a reference's errors: `of(outcomes, reference)`."""

    share: bool = False
    of: Callable[[Outcomes, ErrorTable], Scores]

    @classmethod
    def by_alexnet(cls, *, of: Callable[[Outcomes, ErrorTable], Scores], **how: Any) -> "RelativeError":
        """Divide by AlexNet's errors on ImageNet-C."""
        return cls(
            of=of,
            scores=lambda outcomes: of(outcomes, ALEXNET),
            task="classification",
            unit=PERCENT,
            kinds=("corruption",),
            lower_is_better=True,
            **how,
        )

    def estimate(self, outcomes: Outcomes) -> Estimate:
        """Value and 95 % interval: the bootstrap's, since it is no proportion even where all scores are 0 or 1."""
        return bootstrap_mean(self.scores(outcomes).values)

    def relative_to(self, reference: Outcomes) -> Metric:
        """Divide by the errors of the model with these outcomes."""
        table = CorruptionGrid.of(reference).table("the reference model")
        return replace(self, scores=lambda outcomes: self.of(outcomes, table))


def _accuracy(outcomes: Outcomes, top: int = 1) -> Scores:
    grid = CorruptionGrid.of(outcomes, top)
    return Scores(grid.samples, 1 - mean_error_scores(grid))


def _error(outcomes: Outcomes) -> Scores:
    grid = CorruptionGrid.of(outcomes)
    return Scores(grid.samples, mean_error_scores(grid))


def _mce(outcomes: Outcomes, reference: ErrorTable) -> Scores:
    grid = CorruptionGrid.of(outcomes)
    return Scores(grid.samples, mce_scores(grid, reference))


def _relative_mce(outcomes: Outcomes, reference: ErrorTable) -> Scores:
    grid = CorruptionGrid.of(outcomes)
    return Scores(grid.samples, relative_mce_scores(grid, reference))


def _retention(outcomes: Outcomes) -> Weighted:
    grid = CorruptionGrid.of(outcomes)
    assert grid.clean_wrong is not None
    many = partial(retention, 1 - mean_error_scores(grid), ~grid.clean_wrong)
    return Weighted(grid.samples, lambda weights: float(many(weights)), many=many)


def _enough_clean(outcomes: Outcomes, scenario: Scenario) -> bool:
    right = (outcomes["prediction"] == outcomes["label"])[outcomes["severity"] == 0]
    return isinstance(scenario, Corruption) and scenario.clean and int(right.sum()) >= ENOUGH


def _asks_for_mce(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    """Whether a protocol asks for AlexNet's errors on what papers mean by mCE: 15 corruptions at severities 1 to 5.

    On any other grid the mean of ratios is not mCE: there is the unnormalised mean error.
    """
    if not isinstance(scenario, Corruption) or scenario.reference != "alexnet":
        return False
    return set(COMMON) <= set(scenario.names) and scenario.levels == SEVERITIES


def _asks_for_relative_mce(outcomes: Outcomes, scenario: Scenario) -> bool:
    return _asks_for_mce(outcomes, scenario) and isinstance(scenario, Corruption) and scenario.clean


_mean = partial(Mean, task="classification", unit=PERCENT, kinds=("corruption",))

METRICS = (
    # A sample's score is its share of cells answered correctly; the four extra corruptions do not count.
    _mean(
        name="corruption_accuracy",
        title="Corruption accuracy",
        what="Corruption accuracy: the mean over all cells (corruption x severity) of the share of images classified "
        "correctly.",
        scores=_accuracy,
    ),
    _mean(
        name="corruption_top5_accuracy",
        title="Corruption accuracy (top 5)",
        what="Corruption top-5 accuracy: as corruption accuracy, of images whose label is among the five largest "
        "logits.",
        scores=partial(_accuracy, top=5),
        more_than=5,
    ),
    _mean(
        name="mean_corruption_error",
        title="Mean error under corruption (not mCE)",
        what="Mean corruption error, unnormalised: the mean top-1 error over corruptions and severities. It is not "
        "mCE.",
        lower_is_better=True,
        scores=_error,
    ),
    # AlexNet's errors are of ImageNet-C as published, so protocols say whether they apply; on a board another model can
    # be the reference.
    RelativeError.by_alexnet(
        name="mce",
        title="mCE",
        what="Mean corruption error: errors by corruption divided by a reference's, AlexNet's or another model's; then "
        "the mean.",
        of=_mce,
        applies=_asks_for_mce,
    ),
    # A model that is bad on clean images too can have a small one: read it beside the clean accuracy.
    RelativeError.by_alexnet(
        name="relative_mce",
        title="Relative mCE",
        what="Relative mean corruption error: what corruption costs over the clean error, divided by what it costs a "
        "reference.",
        of=_relative_mce,
        applies=_asks_for_relative_mce,
    ),
    Statistic(
        name="retention",
        title="Retention (corrupted / clean)",
        what="Retention: accuracy under corruption as a fraction of clean accuracy (FAN; Zhou et al. 2022, "
        "arXiv:2204.12451).",
        task="classification",
        unit=PERCENT,
        kinds=("corruption",),
        weighted=_retention,
        applies=_enough_clean,
    ),
)
