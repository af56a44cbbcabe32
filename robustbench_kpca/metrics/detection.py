"""Out-of-distribution detection: how well a score ranks images of unknown classes before images of known ones.

Source: Hendrycks & Gimpel (2017), "A Baseline for Detecting Misclassified and Out-of-Distribution Examples",
arXiv:1610.02136; on ImageNet-O Hendrycks et al. (2021), "Natural Adversarial Examples", arXiv:1907.07174.
The images out of distribution (OOD) are the positive class, and a higher score means more out of distribution: a
confidence comes with a minus sign. A mistake in either gives a plausible number, and another one.
"""

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Statistic, Weighted
from robustbench_kpca.records.estimate import Values
from robustbench_kpca.records.outcomes import Outcomes

Flags = NDArray[np.bool_]
Weights = NDArray[np.int64] | Values | None


@dataclass(frozen=True)
class Ranking:
    """Images by falling score, sorted once for any weights; images of equal score share one place.

    Only places that hold an OOD image are kept, from the highest score down: k of them. All numbers take one row of
    weights, shape (n,), or many, shape (rows, n), and return one number or one of each row.

    outside: indices of the OOD images, highest score first.
    inside: indices of the others, highest score first.
    hits: number of OOD images down to each place, shape (k,).
    above: number of the other images of a higher score than each place has, shape (k,).
    mistaken: number of the other images down to each place, shape (k,).
    latest: the latest rows of weights and their counts: the numbers of one table ask for them one after the other.
    """

    outside: NDArray[np.int64]
    inside: NDArray[np.int64]
    hits: NDArray[np.int64]
    above: NDArray[np.int64]
    mistaken: NDArray[np.int64]
    latest: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

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
        outside, inside = order[ood[order]], order[~ood[order]]
        falling = -scores[inside]
        places, images = np.unique(-scores[outside], return_counts=True)
        above, mistaken = (np.searchsorted(falling, places, side) for side in ("left", "right"))
        return cls(outside, inside, np.cumsum(images), above, mistaken)

    def average_precision(self, weights: Weights = None) -> Values:
        """Area under the precision-recall curve (AUPR) as average precision: a sum over steps, not a trapezoid.

            AP = sum_k (R_k - R_{k-1}) P_k,   R_k recall and P_k precision of the k first places

        In [0, 1]; chance is the share of OOD images.
        """
        hits, _, mistaken, _ = self._counts(weights)
        precision = np.divide(hits, hits + mistaken, out=np.zeros_like(hits), where=hits > 0)
        return np.asarray((np.diff(hits, prepend=0.0) * precision).sum(-1) / hits[..., -1])

    def auroc(self, weights: Weights = None) -> Values:
        """Probability that an OOD image scores higher than another, ties counting half; in [0, 1], chance is 0.5."""
        hits, above, mistaken, inside = self._counts(weights)
        below = inside[..., None] - (above + mistaken) / 2
        return np.asarray((np.diff(hits, prepend=0.0) * below).sum(-1) / (hits[..., -1] * inside))

    def fpr_at_tpr(self, tpr: float = 0.95, weights: Weights = None) -> Values:
        """Share of in-distribution images taken for OOD at the threshold that finds `tpr` of the OOD images.

        As in Hendrycks' code: of the thresholds up to full recall the one whose recall is nearest to `tpr` (not the
        first to reach it); of equally near ones the lowest, so the larger share: just above the next place, or at the
        first place of full recall. In [0, 1], chance is `tpr`, which is above 0.5.
        """
        hits, above, mistaken, inside = self._counts(weights)
        full = hits == hits[..., -1:]
        first = full & (np.cumsum(full, axis=-1) == 1)
        lowest = np.where(first, mistaken, np.roll(above, -1, axis=-1))
        distance = np.where(full & ~first, np.inf, np.abs(hits / hits[..., -1:] - tpr))
        nearest = hits.shape[-1] - 1 - np.argmin(distance[..., ::-1], axis=-1)
        return np.asarray(np.take_along_axis(lowest, nearest[..., None], axis=-1)[..., 0] / inside)

    def chance(self, weights: Weights = None) -> Values:
        """Average precision of guessing: the share of OOD images."""
        hits, _, _, inside = self._counts(weights)
        return np.asarray(hits[..., -1] / (hits[..., -1] + inside))

    def _counts(self, weights: Weights) -> tuple[Values, Values, Values, Values]:
        """Count OOD images down to each place, others above and down to each, shape (..., k), and all others, (...)."""
        if weights is not None and self.latest.get("weights") is weights:
            return cast("tuple[Values, Values, Values, Values]", self.latest["counts"])
        weight = np.ones(len(self.outside) + len(self.inside), dtype=np.int64) if weights is None else weights
        outside, inside = (_summed(weight.take(images, axis=-1)) for images in (self.outside, self.inside))
        if (outside[..., -1] <= 0).any() or (inside[..., -1] <= 0).any():
            raise BadInputError("weights without any image of one kind", fix="resample each kind by itself")
        places = ((outside, self.hits), (inside, self.above), (inside, self.mistaken))
        hits, above, mistaken = (sums.take(at, axis=-1).astype(np.float64) for sums, at in places)
        everything = np.asarray(inside[..., -1], dtype=np.float64)
        self.latest.update(weights=weights, counts=(hits, above, mistaken, everything))
        return hits, above, mistaken, everything


def _summed(weights: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of the first 0, 1, 2, ... weights of each row; whole ones are added as such, which is faster."""
    sums = np.zeros((*weights.shape[:-1], weights.shape[-1] + 1), dtype=weights.dtype)
    np.cumsum(weights, axis=-1, out=sums[..., 1:])
    return sums


def _weighted(outcomes: Outcomes, sureness: str, number: str) -> Weighted:
    ood = outcomes["label"] == 1
    ranking = _ranking(outcomes[sureness].tobytes(), ood.tobytes())

    def values(weights: NDArray[np.int64] | None) -> Values:
        drawn: Values = getattr(ranking, number)(weights=weights)
        return drawn

    return Weighted(outcomes["sample"], lambda weights: float(values(weights)), ood.astype(np.int64), many=values)


@lru_cache(maxsize=3)  # one for each sureness
def _ranking(sureness: bytes, ood: bytes) -> Ranking:
    return Ranking.of(-np.frombuffer(sureness), np.frombuffer(ood, bool))  # those of a low value are taken for unknown


def _chance(outcomes: Outcomes, number: str) -> float:
    unknown = float((outcomes["label"] == 1).mean())
    return {"average_precision": unknown, "auroc": 0.5, "fpr_at_tpr": 0.95}[number]


def _of(number: str, sureness: str, **how: Any) -> Statistic:
    """Return a number of `Ranking` as a metric; `sureness` is the column of outcomes to rank by."""
    return Statistic(
        task="classification",
        unit=PERCENT,
        kinds=("ood",),
        share=True,
        weighted=partial(_weighted, sureness=sureness, number=number),
        chance=partial(_chance, number=number),
        **how,
    )


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
