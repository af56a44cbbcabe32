"""Rules that every honest record of a segmenter keeps. Does not import torch."""

from collections.abc import Mapping

import numpy as np

from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks.rules import COMMON, Rule, first

WHOLE = -1
"""Class of the row of all classes together."""


def pixels_fit(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that right pixels are among those of the class and among those predicted as the class."""
    outcomes = record.outcomes
    wrong = outcomes["intersection"] > np.minimum(outcomes["truth"], outcomes["predicted"])
    wrong |= (outcomes["intersection"] < 0) | (outcomes["class"] < WHOLE)
    wrong |= outcomes["class"] >= record.spec.data.classes
    return first(
        outcomes, wrong, "class {class}: {intersection} right pixels of {truth} true and {predicted} predicted ones"
    )


def never_better(record: Record, scenario: Scenario) -> str | None:
    """Check that no picture of a stage has more right pixels than the clean image."""
    if not isinstance(scenario, Attack):
        return None
    outcomes = record.outcomes
    whole = outcomes["class"] == WHOLE
    clean = {
        sample: right
        for sample, right, picture, row in zip(
            outcomes["sample"].tolist(),
            outcomes["intersection"].tolist(),
            outcomes["picture"].tolist(),
            whole.tolist(),
            strict=True,
        )
        if row and picture == 0
    }
    samples = outcomes["sample"].tolist()
    limit = np.array([clean.get(sample, -1) for sample in samples])
    wrong = whole & (outcomes["picture"] > 0) & (outcomes["intersection"] > limit)
    return first(outcomes, wrong, "picture {picture} has more right pixels than the clean image")


RULES: Mapping[str, Rule] = {**COMMON, "pixels-fit": pixels_fit, "never-better": never_better}
