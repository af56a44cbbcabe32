"""The accuracy against eps of one attack that searched the closest adversarial image of every sample."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.protocols.scenario import Attack, parse_scenario
from robustbench_kpca.records.estimate import Estimate, proportion
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.table import UNATTACKED

_OURS = ("fmn", "ddn", "fab", "cw")
_OTHERS = {
    "torchattacks": ("CW", "DeepFool", "FAB"),
    "foolbox": ("DDNAttack", "L2CarliniWagnerAttack", "L2DeepFoolAttack", "LinfDeepFoolAttack", "LInfFMNAttack"),
    "pyautoattack": ("fab", "fab-t"),
}
SEARCHES = (*_OURS, *(f"{library}:{name}" for library, names in _OTHERS.items() for name in names))
"""Attacks whose last proposal is the closest misclassified image that they found."""
_SLACK = 1e-6  # that of the attack loop: the closest image lies at the distance, up to rounding


def accuracies(record: Record, budgets: Sequence[float]) -> list[Estimate]:
    """Return the robust accuracy at every budget, from the distances in the outcomes.

    An image counts as robust at eps if it was classified correctly, and the closest misclassified image that was found
    lies further away than eps. So the numbers fall as eps grows.

    Args:
        record: of an attack of `SEARCHES` with policy `last`.
        budgets: eps in the record's norm, in pixel space; at most the eps of its protocol.

    Raises:
        BadInputError: another record, or a larger budget.

    """
    protocol = _require_distances(record)
    beyond = next((eps for eps in budgets if eps > protocol.eps + _SLACK), None)
    if beyond is not None:
        raise BadInputError(
            f"eps = {beyond:g} beyond that of the record",
            expected=f"at most {protocol.eps:g}",
            fix="evaluate again with a larger eps",
        )
    reached = distances(record)
    return [proportion(int((reached > eps + _SLACK).sum()), len(reached)) for eps in budgets]


def distances(record: Record) -> NDArray[np.float64]:
    """Return every sample's distance: 0 if misclassified before any attack, infinite if nothing was found."""
    protocol, outcomes = _require_distances(record), record.outcomes
    reached: NDArray[np.float64] = np.where(outcomes["broken_by"] == "", np.inf, outcomes[protocol.norm])
    return np.where(np.isin(outcomes["broken_by"], UNATTACKED), 0.0, reached)


def _require_distances(record: Record) -> Attack:
    name = record.spec.protocol.name
    protocol = parse_scenario(dict(record.spec.protocol.resolved), name)
    stages = [stage.attack for stage in protocol.stage] if isinstance(protocol, Attack) else []
    if not isinstance(protocol, Attack) or len(stages) != 1 or stages[0] not in SEARCHES or protocol.policy != "last":
        raise BadInputError(
            f"a record under '{name}' has no minimal distances",
            expected=f"one attack of {', '.join(_OURS)}, or of another library, with policy = 'last'",
            fix="evaluate with fmn-linf-32_255 or fmn-l2-2, or make a record for each eps by rbk eval --curve",
        )
    if protocol.norm not in record.outcomes.columns or protocol.space != "pixel":
        raise BadInputError(
            f"a record under '{name}' is of {protocol.norm} in {protocol.space} space",
            expected="linf or l2 in pixel space: other distances are not recorded",
        )
    return protocol
