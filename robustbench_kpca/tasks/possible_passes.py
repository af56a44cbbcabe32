"""The rule `possible-passes`: no sample costs more or fewer passes than its protocol can cost. Does not import torch.

At most: every restart of every attack, and one forward pass for each claim of success that did not hold. At least,
where nothing ends the search early (the sample withstands, or the protocol wants the strongest image): every restart of
every attack. Attacks of other libraries have no bounds.
"""

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.attacks.shared.passes import evaluated, stated
from robustbench_kpca.protocols.scenario import MANY, Attack, Scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.table import UNATTACKED

_CLASSES = ("label", "class", "prediction", "clean_prediction")

Numbers = NDArray[np.float64]


def possible_passes(record: Record, scenario: Scenario) -> str | None:
    """Check that every sample cost a number of passes that the protocol can cost."""
    if not isinstance(scenario, Attack) or not all(stated(stage.attack) for stage in scenario.stage):
        return None
    outcomes = record.outcomes
    try:
        least, most = _costs(scenario, outcomes)
    except (NameError, TypeError, AttributeError):
        return "an attack of its protocol lacks an option, or has one of the wrong type"
    sample, rows = outcomes.coded("sample").compact()
    owner = sample.codes
    retracted = scenario.draws * np.bincount(owner, outcomes["retracted"])
    whole = _whole(scenario, outcomes, rows)
    for kind, name in enumerate(("forwards", "backwards")):
        spent = np.bincount(owner, outcomes[name])
        high = most[kind] + (retracted if name == "forwards" else 0 * retracted)
        low = np.where(whole, least[kind], 0)
        for wrong, limit, word in ((spent > high, high, "most"), (spent < low, low, "least")):
            if wrong.any():
                first = int(np.where(wrong, rows, len(owner)).argmin())
                met = f"row {rows[first] + 1}, sample '{outcomes['sample'][rows[first]]}': {int(spent[first])} {name}"
                return f"{met}; the protocol costs at {word} {int(limit[first])}"
    return None


def _costs(scenario: Attack, outcomes: Outcomes) -> tuple[Numbers, Numbers]:
    """Return the least and the most (forward, backward) passes of a search that nothing ends early.

    The number of classes of the model is not in a record. Those seen are the fewest that it can have.
    """
    seen = max([2, *(1 + int(outcomes[name].max()) for name in _CLASSES if name in outcomes.columns)])
    least, most = np.zeros(2), np.zeros(2)
    for stage in scenario.stage:
        formulas = stated(stage.attack)
        assert formulas is not None
        most += stage.restarts * np.array(stage.spent(*evaluated(formulas[0], stage.options, MANY)), float)
        least += stage.restarts * np.array(stage.spent(*evaluated(formulas[1], stage.options, seen)), float)
    graded = "broken_by" not in outcomes.columns  # then the worst image of every stage is confirmed
    most[0] += len(scenario.stage) if graded else scenario.policy == "strongest"
    searches = 1 + len(scenario.below)
    return scenario.draws * searches * least, scenario.draws * searches * most


def _whole(scenario: Attack, outcomes: Outcomes, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Tell for which samples, whose first rows are `rows`, nothing ended the search early."""
    if "broken_by" not in outcomes.columns:
        return np.ones(len(rows), bool)
    by = outcomes["broken_by"][rows]
    attacked = ~np.isin(by, UNATTACKED) | (scenario.labels != "true")
    strongest = scenario.policy == "strongest" and not scenario.below
    whole: NDArray[np.bool_] = (by == "") | (attacked & strongest)
    return whole
