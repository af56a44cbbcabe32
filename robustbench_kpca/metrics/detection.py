"""Out-of-distribution detection: how well a score ranks images of unknown classes before images of known ones.

Source: Hendrycks & Gimpel (2017), "A Baseline for Detecting Misclassified and Out-of-Distribution Examples",
arXiv:1610.02136; on ImageNet-O Hendrycks et al. (2021), "Natural Adversarial Examples", arXiv:1907.07174.
The images out of distribution (OOD) are the positive class, and a higher score means more out of distribution: a
confidence comes with a minus sign. A mistake in either gives a plausible number, and another one.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Statistic, Weighted
from robustbench_kpca.records.estimate import Values
from robustbench_kpca.records.outcomes import Outcomes

Flags = NDArray[np.bool_]
Weights = NDArray[np.int64] | Values | None


@dataclass(frozen=True)
class Ranking:
    """Images by falling score, sorted once for any weights; images of equal score share one place.

    order: indices of the n images, highest score first.
    ends: index into `order` of the last image of each of the k places, shape (k,).
    ood: whether each image is out of distribution, in the order given, shape (n,).
    """

    order: NDArray[np.int64]
    ends: NDArray[np.int64]
    ood: Flags

    @classmethod
    def of(cls, scores: Values, ood: Flags) -> "Ranking":
        """Sort the images.

        Args:
            scores: shape (n,), higher means more out of distribution.
            ood: which images are out of distribution, shape (n,).

        Raises:
            BadInputError: a score is NaN, lengths differ, or one of the two kinds of images is absent.

        """
        if scores.shape != ood.shape or ood.ndim != 1 or np.isnan(scores).any():
            raise BadInputError(
                f"{np.isnan(scores).sum()} NaN among scores of shape {scores.shape} for {ood.shape} images",
                expected="one score an image, none of them NaN",
            )
        if not 0 < ood.sum() < len(ood):
            raise BadInputError(f"{ood.sum()} of {len(ood)} images out of distribution", expected="some and not all")
        order = np.argsort(-scores, kind="stable")
        changes = np.flatnonzero(scores[order][1:] != scores[order][:-1])
        return cls(order, np.append(changes, len(order) - 1), ood)

    def average_precision(self, weights: Weights = None) -> float:
        """Area under the precision-recall curve (AUPR) as average precision: a sum over steps, not a trapezoid.

            AP = sum_k (R_k - R_{k-1}) P_k,   R_k recall and P_k precision of the k first places

        In [0, 1]; chance is the share of OOD images.
        """
        found, mistaken = self._counts(weights)
        precision = np.divide(found, found + mistaken, out=np.zeros_like(found), where=found > 0)
        return float(np.diff(found, prepend=0.0) @ precision / found[-1])

    def auroc(self, weights: Weights = None) -> float:
        """Probability that an OOD image scores higher than another, ties counting half; in [0, 1], chance is 0.5."""
        found, mistaken = self._counts(weights)
        heights = found + np.append(0.0, found[:-1])
        return float(np.diff(mistaken, prepend=0.0) @ heights / (2 * found[-1] * mistaken[-1]))

    def fpr_at_tpr(self, tpr: float = 0.95, weights: Weights = None) -> float:
        """Share of in-distribution images taken for OOD at the threshold that finds `tpr` of the OOD images.

        As in Hendrycks' code: of the places up to full recall the one whose recall is nearest to `tpr` (not the first
        to reach it); of equally near ones the lowest score, so the larger share. In [0, 1], chance is `tpr`.
        """
        found, mistaken = self._counts(weights)
        full = int(np.searchsorted(found, found[-1]))
        distance = np.abs(found[: full + 1] / found[-1] - tpr)[::-1]
        return float(mistaken[full - int(np.argmin(distance))] / mistaken[-1])

    def chance(self, weights: Weights = None) -> float:
        """Average precision of guessing: the share of OOD images."""
        found, mistaken = self._counts(weights)
        return float(found[-1] / (found[-1] + mistaken[-1]))

    def _counts(self, weights: Weights) -> tuple[Values, Values]:
        """Count OOD and other images down to each place, shape (k,) each."""
        ood = self.ood[self.order]
        weight = np.ones(len(ood)) if weights is None else np.asarray(weights, dtype=np.float64)[self.order]
        found = np.cumsum(np.where(ood, weight, 0.0))[self.ends]
        mistaken = np.cumsum(np.where(ood, 0.0, weight))[self.ends]
        if found[-1] <= 0 or mistaken[-1] <= 0:
            raise BadInputError("weights without any image of one kind", fix="resample each kind by itself")
        return found, mistaken


def _weighted(outcomes: Outcomes, sureness: str, number: str) -> Weighted:
    ood = outcomes["label"] == 1
    ranking = Ranking.of(-outcomes[sureness], ood)  # images with a low value are taken for unknown

    def value(weights: NDArray[np.int64] | None) -> float:
        return float(getattr(ranking, number)(weights=weights))

    return Weighted(outcomes["sample"], value, ood.astype(np.int64))


def _chance(outcomes: Outcomes, number: str) -> float:
    unknown = float((outcomes["label"] == 1).mean())
    return {"average_precision": unknown, "auroc": 0.5, "fpr_at_tpr": 0.95}[number]


def _of(number: str, sureness: str, **how: Any) -> Statistic:
    """Return a number of `Ranking` as a metric; `sureness` is the column of outcomes to rank by."""
    return Statistic(
        task="classification", unit=PERCENT, kinds=("ood",),
        weighted=partial(_weighted, sureness=sureness, number=number), chance=partial(_chance, number=number), **how,
    )  # fmt: skip


METRICS = (
    _of(
        "average_precision",
        "max_log_softmax",
        name="aupr",
        title="AUPR, max softmax",
        what="AUPR of max softmax (Hendrycks & Gimpel 2017): average precision, unknown classes positive; chance is "
        "their share.",
    ),
    _of(
        "average_precision",
        "log_sum_exp",
        name="aupr_energy",
        title="AUPR, energy",
        what="AUPR of the energy, minus log-sum-exp of the logits (Liu et al. 2020, arXiv:2010.03759), unknown classes "
        "positive.",
    ),
    _of(
        "average_precision",
        "max_logit",
        name="aupr_max_logit",
        title="AUPR, max logit",
        what="AUPR of the largest logit (Hendrycks et al. 2022, arXiv:1911.11132), with unknown classes positive.",
    ),
    _of(
        "auroc",
        "max_log_softmax",
        name="auroc",
        title="AUROC, max softmax",
        what="AUROC of max softmax: how often an image of an unknown class is less sure than one of a known class.",
    ),
    _of(
        "fpr_at_tpr",
        "max_log_softmax",
        name="fpr95",
        title="FPR95, max softmax",
        what="FPR95 of max softmax: known images taken for unknown where 95 % of the unknown are found (Hendrycks' "
        "definition).",
        lower_is_better=True,
    ),
)
