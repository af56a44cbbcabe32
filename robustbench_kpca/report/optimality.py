"""How good attacks are that search the closest adversarial image: their distances against the best known, and passes.

Cinà et al. (2025), "AttackBench: Evaluating Gradient-based Attacks for Adversarial Examples", arXiv:2404.19460. Let d_i
be the distance of an attack on image i: 0 if misclassified before, infinite if nothing was found. Let d*_i be the least
of all attacks on that network, and d_max the largest d*_i. The area under robust accuracy up to d_max is
mean_i min(d_i, d_max), and the local optimality

    1 - (mean min(d, d_max) - mean d*) / (acc_clean d_max - mean d*):

1 for an attack that is never beaten, 0 for one that breaks nothing inside d_max. The area is exact. The released
program joins observed distances by straight lines, which flatters attacks that fail.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


Distances = NDArray[np.float64]


@dataclass(frozen=True)
class Quality:
    """One attack on one network.

    Attributes:
        attack: name of the protocol.
        passes: forward and backward passes for each image that was attacked, on average.
        missed: share of the images attacked for which nothing was found.
        median: of the distances of the images attacked; infinite where half of them were missed.
        optimality: the local optimality; None where no attack broke an image that was right.
    """

    model: str
    attack: str
    n: int
    passes: float
    missed: float
    median: float
    optimality: float | None


def local_optimality(attacks: Mapping[str, Distances]) -> dict[str, float | None]:
    """Return the local optimality of every attack on one network, from distances of the same images in one order.

    None for all, where no image has a finite distance above 0. An image that no attack breaks counts with d_max.
    """
    best = np.min(list(attacks.values()), axis=0)
    reached = best[np.isfinite(best)]
    most = float(reached.max()) if len(reached) else 0.0
    least, worst = (float(np.minimum(part, most).mean()) for part in (best, np.where(best > 0, np.inf, 0.0)))
    if worst <= least:
        return dict.fromkeys(attacks)
    return {name: 1 - (float(np.minimum(own, most).mean()) - least) / (worst - least) for name, own in attacks.items()}


def qualities(records: Sequence[Record]) -> list[Quality]:
    """Compare attacks network by network, best first.

    Raises:
        BadInputError: a record has no distances (`distances`), two are of one attack on one network, or records
            of one network are of other images, norms or eps.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.spec.model.name, []).append(record)
    return [quality for name, group in groups.items() for quality in _of_network(name, group)]


def global_optimality(compared: Sequence[Quality]) -> dict[str, float]:
    """Return, best first, the mean local optimality of the attacks that were tried on every network."""
    networks = {quality.model for quality in compared}
    by_attack: dict[str, list[float]] = {}
    for quality in compared:
        if quality.optimality is not None:
            by_attack.setdefault(quality.attack, []).append(quality.optimality)
    whole = {name: float(np.mean(own)) for name, own in by_attack.items() if len(own) == len(networks)}
    return dict(sorted(whole.items(), key=lambda pair: -pair[1]))


def _of_network(name: str, records: Sequence[Record]) -> list[Quality]:
    first = records[0].spec
    alike = {
        (
            record.spec.model.network,
            record.spec.data.digest,
            record.spec.protocol.resolved["norm"],
            record.spec.protocol.resolved["eps"],
        )
        for record in records
    }
    attacks = {
        record.spec.protocol.name: distances(record)[np.argsort(record.outcomes["sample"])] for record in records
    }
    if len(alike) > 1 or len(attacks) < len(records):
        raise BadInputError(
            f"records of '{name}' are not of different attacks on {first.data.name} in one norm up to one eps",
            expected="one record of each attack on the same network and images",
        )
    optimal = local_optimality(attacks)
    return sorted(
        (_quality(record, attacks[record.spec.protocol.name], optimal) for record in records),
        key=lambda own: (-1.0 if own.optimality is None else -own.optimality, own.attack),
    )


def _quality(record: Record, own: Distances, optimal: Mapping[str, float | None]) -> Quality:
    outcomes, attack = record.outcomes, record.spec.protocol.name
    tried = own[own > 0]
    spent = outcomes["forwards"] + outcomes["backwards"]
    return Quality(
        model=record.spec.model.name,
        attack=attack,
        n=len(own),
        passes=float(spent.sum()) / max(len(tried), 1),
        missed=float(np.isinf(tried).mean()) if len(tried) else 0.0,
        median=float(np.median(tried)) if len(tried) else 0.0,
        optimality=optimal[attack],
    )
