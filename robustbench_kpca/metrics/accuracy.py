"""Accuracies of classifiers: the share of images that are classified correctly, in six situations."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.metrics import PERCENT, Mean, Scores, Unit
from robustbench_kpca.metrics.shared.metric import has_clean
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.outcomes import Outcomes


def correct(outcomes: Outcomes) -> NDArray[np.bool_]:
    """Return per row whether it is right: under attack that nothing broke it, else that the label was predicted."""
    if outcomes.kind == "attack":
        return np.asarray(outcomes["broken_by"] == "")
    return np.asarray(outcomes["prediction"] == outcomes["label"])


def _correct(outcomes: Outcomes) -> Scores:
    return Scores(outcomes["sample"], correct(outcomes).astype(float))


def clean_answers(outcomes: Outcomes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the answers to clean samples, or to shifted ones, and their labels; without samples of no answer."""
    predictions = outcomes["clean_prediction" if outcomes.kind == "attack" else "prediction"]
    clean = outcomes["severity"] == 0 if outcomes.kind == "corruption" else predictions >= 0  # -1: it abstains
    return predictions[clean], outcomes["label"][clean]


def guessing(outcomes: Outcomes) -> float:
    """Return how often the answers to clean samples would be right if they were dealt out at random.

    With shares p of the labels and q of the answers it is sum(p q); 0 without answers.
    """
    answers, labels = clean_answers(outcomes)
    classes = 1 + max([*labels, *answers], default=0)
    counts = (np.bincount(column, minlength=classes) for column in (labels, answers))
    return float(np.prod([*counts], axis=0).sum() / max(len(labels), 1) ** 2)


def _clean(outcomes: Outcomes) -> Scores:
    if outcomes.kind == "corruption":
        outcomes = outcomes.where(outcomes["severity"] == 0)
    prediction = outcomes["clean_prediction" if outcomes.kind == "attack" else "prediction"]
    return Scores(outcomes["sample"], (prediction == outcomes["label"]).astype(float))


def _top5(outcomes: Outcomes) -> Scores:
    return Scores(outcomes["sample"], (outcomes["rank"] < 5).astype(float))


def _robust_top5(outcomes: Outcomes) -> Scores:
    answered = outcomes["prediction"] >= 0  # NaN and infinite logits are never right
    return Scores(outcomes["sample"], (answered & (outcomes["rank"] < 5)).astype(float))


def _has_rank(outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    """Whether the table has ranks: tables of attacks made before ranks were recorded have none."""
    return "rank" in outcomes.columns


def _no_top5(scenario: Scenario) -> str:
    """Return why top-5 accuracy has no meaning under an attack (docs/decisions/0011), or ""."""
    if not isinstance(scenario, Attack):
        return ""
    whole = "policy = 'last' with labels = 'true_for_all'"
    if scenario.policy == "stop_at_first":
        return f"the attack stops at the first misclassified image, whose label is mostly second (set {whole})"
    if scenario.labels == "true":
        return "images that are misclassified when clean are not attacked (set labels = 'true_for_all')"
    if scenario.below:
        return "images broken at a smaller eps are not attacked again (give --independent with --curve)"
    return ""


def _certified(outcomes: Outcomes) -> Scores:
    return Scores(outcomes["sample"], (correct(outcomes) & (outcomes["certified"] == 1)).astype(float))


def _abstained(outcomes: Outcomes) -> Scores:
    return Scores(outcomes["sample"], (outcomes["prediction"] == -1).astype(float))


def _radius(outcomes: Outcomes) -> Scores:
    return Scores(outcomes["sample"], np.where(correct(outcomes), outcomes["radius"], 0.0))


_accuracy = partial(Mean, task="classification", unit=PERCENT)

METRICS = (
    _accuracy(
        name="clean_accuracy",
        title="Clean accuracy",
        what="Clean accuracy: the share of unchanged images whose label has the largest logit.",
        kinds=("clean", "attack", "corruption", "certificate"),
        scores=_clean,
        applies=has_clean,
    ),
    _accuracy(
        name="top5_accuracy",
        title="Top-5 accuracy",
        what="Top-5 accuracy: the share of images whose label is among the five largest logits (of the classes asked "
        "for).",
        kinds=("clean", "shift"),
        scores=_top5,
        more_than=5,
    ),
    _accuracy(
        name="robust_accuracy",
        title="Robust accuracy",
        what="Robust accuracy: the share of images classified correctly that no attack of the protocol could break.",
        kinds=("attack",),
        scores=_correct,
        unattacked="clean_accuracy",
    ),
    _accuracy(
        name="robust_top5_accuracy",
        title="Top-5 accuracy under attack",
        what="Top-5 accuracy under attack: the share of images whose label is among the five largest logits of the "
        "image that decides. Attacks aim at the largest logit, so it is an upper bound for attacks on the top 5.",
        kinds=("attack",),
        scores=_robust_top5,
        applies=_has_rank,
        objection=_no_top5,
        unattacked="top5_accuracy",
        more_than=5,
    ),
    _accuracy(
        name="certified_accuracy",
        title="Certified accuracy",
        what="Certified accuracy: the share of images classified correctly whose answer is proven for every change "
        "that the protocol asks about.",
        kinds=("certificate",),
        scores=_certified,
    ),
    _accuracy(
        name="abstained",
        title="Abstained",
        what="The share of images on which a model of random votes gives no answer.",
        kinds=("certificate",),
        scores=_abstained,
        lower_is_better=True,
    ),
    Mean(
        name="certified_radius",
        title="Mean certified radius",
        what="The mean certified radius, 0 for images that are misclassified: side of a patch, pixels, or L2.",
        task="classification",
        unit=Unit(digits=4),
        kinds=("certificate",),
        scores=_radius,
        share=False,
    ),
    _accuracy(
        name="shift_accuracy",
        title="Accuracy under shift",
        what="Accuracy on shifted images, among the classes that the protocol names (the 200 of ImageNet-A or -R, or "
        "all).",
        kinds=("shift",),
        scores=_correct,
    ),
    # Published numbers for ImageNet-A and -R are among 200 classes: about 12 points higher for ImageNet-R.
)
