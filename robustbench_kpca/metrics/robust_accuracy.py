"""Robust accuracy: the share of images classified correctly that no attack of the protocol could break."""

from robustbench_kpca.metrics import Mean, Scores
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    return Scores(outcomes["sample"], outcomes.correct.astype(float))


METRIC = Mean(name="robust_accuracy", title="Robust accuracy", kinds=("attack",), scores=_scores)
