"""Clean accuracy: the share of unchanged images whose label has the largest logit."""

from robustbench_kpca.metrics import Metric, Scores
from robustbench_kpca.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    prediction = outcomes["prediction" if outcomes.kind == "clean" else "clean_prediction"]
    return Scores(outcomes["sample"], (prediction == outcomes["label"]).astype(float))


METRIC = Metric("clean_accuracy", "Clean accuracy", ("clean", "attack"), _scores)
