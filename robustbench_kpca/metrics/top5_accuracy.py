"""Top-5 accuracy: the share of images whose label is among the five largest logits (of the classes asked for)."""

from robustbench_kpca.metrics import Mean, Scores
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    return Scores(outcomes["sample"], (outcomes["rank"] < 5).astype(float))


METRIC = Mean(name="top5_accuracy", title="Top-5 accuracy", kinds=("clean", "shift"), scores=_scores)
