"""Accuracy on shifted images among all classes: about 12 points below that among 200 for ImageNet-R.

Published numbers for ImageNet-A and -R are masked (`shift_accuracy`); this is the variant without the mask.
"""

from robustbench_kpca.metrics import Mean, Scores
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    return Scores(outcomes["sample"], (outcomes["unmasked_prediction"] == outcomes["label"]).astype(float))


METRIC = Mean(name="unmasked_accuracy", title="Accuracy among all classes", kinds=("shift",), scores=_scores)
