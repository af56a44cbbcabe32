"""Accuracy on shifted images, among the classes that the protocol names (the 200 of ImageNet-A or -R, or all)."""

from robustbench_kpca.metrics import Mean, Scores
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    return Scores(outcomes["sample"], outcomes.correct.astype(float))


METRIC = Mean(name="shift_accuracy", title="Accuracy under shift", kinds=("shift",), scores=_scores)
