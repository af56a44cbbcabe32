"""Whether a number agrees with a statement about it: an interval is compared with a range.

The statement agrees if the whole interval lies inside the range, does not if it lies outside, and else cannot be tested
at this size: more samples or trainings are needed.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis
from robustbench_kpca.study.diagnostics.epochs import EpochTerms
from robustbench_kpca.study.reproduction.statements import Claimed


class Verdict(StrEnum):
    """How a statement and what was measured stand to each other."""

    agrees = "agrees"
    differs = "does not agree"
    undecided = "not testable at this size"
    missing = "not measured"


def judge(interval: Estimate, least: float | None, most: float | None) -> Verdict:
    """Compare an interval with a range: inside, outside, or neither; ends belong to the range.

    An interval without width decides nothing: it comes of one sample, or of samples that are all alike.
    """
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    if interval.n < 2 or not interval.low < interval.high:
        return Verdict.undecided
    if low <= interval.low and interval.high <= high:
        return Verdict.agrees
    return Verdict.differs if interval.high < low or interval.low > high else Verdict.undecided


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of a statement about all of several things: it differs where one of them does."""
    for verdict in (Verdict.differs, Verdict.missing, Verdict.undecided):
        if verdict in verdicts:
            return verdict
    return Verdict.agrees


def better(gain: Estimate, by: float) -> Verdict:
    """Judge "better by at least `by`".

    Without a margin, an interval that ends exactly at zero is undecided. A bootstrap ends there where one sample in few
    was lost and none was won: the end is a sample that was not drawn, and no sign that one row is worse.
    """
    if by == 0 and 0.0 in (gain.low, gain.high):
        return Verdict.undecided
    return judge(gain, by, None)


def claimed(evidence: Claimed, diagnosis: Diagnosis) -> tuple[Verdict, str]:
    """Return the verdict of a diagnosis on a claim, or that of a statistic of it against a range, with its numbers."""
    judged = diagnosis.claims.get(evidence.claim)
    if judged is None:
        raise unknown_name(f"claim (of the diagnosis of {diagnosis.model.name})", evidence.claim, diagnosis.claims)
    if not evidence.statistic:
        outcomes = {"supported": Verdict.agrees, "not supported": Verdict.differs, "not testable": Verdict.undecided}
        return outcomes[judged.outcome], judged.why
    measured = judged.statistics.get(evidence.statistic)
    if measured is None:
        raise unknown_name(f"statistic (of {evidence.claim})", evidence.statistic, judged.statistics)
    estimate = measured.estimate
    chance = "" if measured.null is None else f"; by chance {measured.null.chance:.3g}"
    text = f"{measured.what}: {estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]{chance}"
    return judge(estimate, evidence.least, evidence.most), text


def moved(epochs: Sequence[EpochTerms], statistic: str, *, up: bool) -> tuple[Verdict, str]:
    """Judge a statistic from the first kept epoch to the last: it has moved where every layer has, the same way."""
    if len(epochs) < 2:
        return Verdict.undecided, "fewer than two epochs"
    first, last = epochs[0], epochs[-1]
    if statistic not in first.by_layer:
        raise unknown_name("statistic of the projection loss", statistic, first.by_layer)
    pairs = list(zip(first.by_layer[statistic], last.by_layer[statistic], strict=True))
    right = sum(after > before if up else after < before for before, after in pairs)
    text = (
        f"{statistic} from {first.mean(statistic):.3g} after epoch {first.epoch} to {last.mean(statistic):.3g} after "
        f"epoch {last.epoch}; {'higher' if up else 'lower'} in {right} of {len(pairs)} layers"
    )
    verdict = Verdict.agrees if right == len(pairs) else Verdict.differs if right == 0 else Verdict.undecided
    return verdict, text
