"""Clean accuracy: the share of unchanged images whose label has the largest logit."""

from robustbench_kpca.metrics import Mean, Scores
from robustbench_kpca.protocols.scenario import Corruption, Scenario
from robustbench_kpca.records.outcomes import Outcomes


def _scores(outcomes: Outcomes) -> Scores:
    if outcomes.kind == "corruption":
        outcomes = outcomes.where(outcomes["severity"] == 0)
    prediction = outcomes["clean_prediction" if outcomes.kind == "attack" else "prediction"]
    return Scores(outcomes["sample"], (prediction == outcomes["label"]).astype(float))


def _applies(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    return not isinstance(scenario, Corruption) or scenario.clean


METRIC = Mean(
    name="clean_accuracy", title="Clean accuracy", kinds=("clean", "attack", "corruption"), scores=_scores,
    applies=_applies,
)  # fmt: skip
