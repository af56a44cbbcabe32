"""What a certificate proves, no attack on that network changes."""

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.protocols.scenario import Attack, Certificate
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.proof import proof_of
from robustbench_kpca.records.record import Record

LEVEL = 1e-3
"""Chance of a draw, below which a changed answer is no accident."""


def broken_proof(certificate: Record, attack: Record) -> str | None:
    """Return the first sample whose proven answer an attack changed, in words; None where the records agree.

    An attack sees only some draws of a model that draws noise. So a changed answer counts where so few votes, over all
    images that the attack showed, are less likely than `LEVEL`. A share `alpha` of many proofs may be wrong.
    """
    if not _same(certificate, attack):
        return None
    claim, attempt = certificate.spec.protocol.scenario, attack.spec.protocol.scenario
    proof = proof_of(certificate.spec.model.config, "the model's configuration")
    assert isinstance(claim, Certificate)
    assert isinstance(attempt, Attack)
    assert proof is not None, "the rule votes-give-radius"
    places = {sample: at for at, sample in enumerate(certificate.outcomes["sample"].tolist())}
    rows = np.array([places.get(sample, -1) for sample in attack.outcomes["sample"].tolist()])
    attacked = attack.outcomes.where(rows >= 0)
    proven = certificate.outcomes.where(rows[rows >= 0])
    reach = _reach(claim, attempt, attacked)

    def chance(at: int) -> float:
        share = proof.share(int(proven["votes"][at]), int(proven["rival"][at]), float(reach[at]), claim.alpha)
        return _chance(share, attempt.draws, int(attacked["forwards"][at]))

    changed = (proven["prediction"] >= 0) & (attacked["prediction"] != proven["prediction"])
    changed &= (proven["radius"] > 0) & (reach <= proven["radius"])
    broken = [at for at in np.flatnonzero(changed).tolist() if chance(at) < LEVEL]
    if not broken or not _too_many(len(broken), len(proven), claim.alpha):
        return None
    first = broken[0]
    return (
        f"answers sample '{attacked['sample'][first]}' by class {attacked['prediction'][first]} at a distance of "
        f"{reach[first]:.6g}, though class {proven['prediction'][first]} is proven up to {proven['radius'][first]:g}"
    )


def _same(certificate: Record, attack: Record) -> bool:
    """Whether they are of one network on one set of images."""
    proven_spec, attacked_spec = certificate.spec, attack.spec
    what = [
        (spec.model.network, spec.code.get("model"), spec.data.name, spec.data.split, spec.data.resized)
        for spec in (proven_spec, attacked_spec)
    ]
    return what[0] == what[1]


def furthest(certificate: Certificate, attack: Attack) -> float:
    """Return how far an attack goes at most, in the units of the radius; infinite where this is not known."""
    threat, sided = attack.threat, attack.norm == "l0" or isinstance(attack.patch, int)
    if attack.space != "pixel":
        return np.inf
    if certificate.norm == "l2":
        return attack.eps if attack.norm == "l2" else np.inf
    if certificate.norm == "l0":
        return float(threat.count * threat.side**2) if sided and threat.counted else np.inf
    return float(threat.side) if attack.norm == "patches" and sided and attack.eps <= certificate.eps else np.inf


def _reach(certificate: Certificate, attack: Attack, outcomes: Outcomes) -> NDArray[np.float64]:
    """Return how far each deciding image is away, in the units of the radius; infinite where this is not known."""
    if certificate.norm == "l2":
        away: NDArray[np.float64] = outcomes["l2"] * (1 + 1e-5) + 1e-6
        return away
    return np.full(len(outcomes), np.float32(furthest(certificate, attack)), np.float64)  # as columns hold radii


def _chance(share: float, draws: int, forwards: int) -> float:
    """Return at most how likely it is that no more than half of the draws are for the class, on any image shown."""
    from scipy import special  # importing it takes a moment

    return float((forwards / draws + 1) * special.bdtr(draws // 2, draws, min(max(share, 0.0), 1.0)))


def _too_many(false_proofs: int, count: int, alpha: float) -> bool:
    """Whether so many false proofs of `count` are less likely than `LEVEL`, where each is false with `alpha`."""
    from scipy import special  # importing it takes a moment

    return float(special.bdtrc(false_proofs - 1, count, alpha)) < LEVEL
