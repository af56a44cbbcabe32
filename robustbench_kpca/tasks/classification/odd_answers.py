"""Answers to clean samples that no trained classifier gives: worse than guessing, or the same to all of them."""

import numpy as np

from robustbench_kpca.records.outcomes import Outcomes

LEVEL = 1e-3
"""Of the exact test: a model that guesses is flagged in one of a thousand evaluations, a better one hardly ever."""
FEWEST = 8
"""Of fewer samples, one answer to all is no surprise."""
_ANSWERS = {
    "clean": "prediction",
    "attack": "clean_prediction",
    "corruption": "prediction",
    "certificate": "prediction",
}


def odd_answers(outcomes: Outcomes) -> list[str]:
    """Return flags for a record; not of shifted data, some of which are chosen to be classified wrongly.

    With shares p of the labels and q of the predictions, a guesser is right with probability sum(p q). The test is
    binomial, exact and one-sided. Labels that number the classes in another way are the usual cause.
    """
    if outcomes.kind not in _ANSWERS:
        return []
    given = outcomes[_ANSWERS[outcomes.kind]]
    clean = outcomes["severity"] == 0 if outcomes.kind == "corruption" else given >= 0  # -1: it abstains
    answers, labels = given[clean], outcomes["label"][clean]
    if len(labels) < FEWEST or (labels == labels[0]).all():
        return []
    if (answers == answers[0]).all():
        share = 100 * float((labels == answers[0]).mean())
        same = f"the model answers class {answers[0]} to all {len(answers)} clean samples"
        return [f"{same}: its accuracy is the share of that class, {share:.1f} %, whatever the attack"]
    return _worse_than_guessing(answers, labels)


def _worse_than_guessing(answers: np.ndarray, labels: np.ndarray) -> list[str]:
    from scipy import special  # importing it takes a moment

    n, right = len(labels), int((answers == labels).sum())
    classes = 1 + max(labels.max(), answers.max())
    shares = (np.bincount(column, minlength=classes) / n for column in (labels, answers))
    chance = float(np.prod([*shares], axis=0).sum())
    if special.bdtr(right, n, chance) >= LEVEL:
        return []
    said = f"only {right} of {n} clean samples are classified rightly, and guessing would give {100 * chance:.1f} %"
    return [f"{said}: are the labels numbered as the model numbers its classes?"]
