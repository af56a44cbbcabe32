"""Records that are shown together do not contradict one another: what each of them may state, all cannot."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import sha256
from robustbench_kpca.protocols.scenario import Attack, Certificate, parse_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.proof import proof_of
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board_spec import Row

_LABELS: dict[str, str] = {}
"""Digest of a table -> of its samples and labels."""
LEVEL = 1e-3
"""Chance of a draw, below which a changed answer is no accident."""


def require_no_contradiction(records: Iterable[Record], rows: Iterable[Row]) -> None:
    """Refuse records of which at least one is false.

    One digest of data stands for one number of samples, of classes, and one label of each sample. Trainings of a row
    are different networks, which answer differently. An audit is of one network. What a certificate proves of a sample,
    no attack on that network changes.
    """
    shown = list(records)
    _require_one_set_each(shown)
    _require_own_audits(shown)
    _require_proofs(shown)
    for row in rows:
        _require_several_networks(row, [record for record in shown if record.spec.model.name in row.models])


def _require_one_set_each(records: Sequence[Record]) -> None:
    first: dict[str, Record] = {}
    for record in records:
        data, other = record.spec.data, first.setdefault(record.spec.data.digest, record)
        for what, mine, theirs in (
            ("samples", data.n, other.spec.data.n),
            ("classes", data.classes, other.spec.data.classes),
            ("labels", _labels(record), _labels(other)),
        ):
            if mine != theirs:
                raise _contradiction(record, other, f"has other {what} under one digest of data, {data.digest[:12]}")


def _labels(record: Record) -> str:
    """Return a digest of the samples and their labels; "" where samples have none."""
    key = record.outcomes_file.sha256
    if key not in _LABELS:
        outcomes = record.outcomes
        if "label" not in outcomes.columns:
            return ""
        owner, samples = outcomes.numbered("sample")
        labels = outcomes["label"][np.unique(owner, return_index=True)[1]].tolist()
        pairs = sorted(zip(samples.tolist(), labels, strict=True))
        _LABELS[key] = sha256("\n".join(f"{label},{name}" for name, label in pairs).encode())
    return _LABELS[key]


def _require_own_audits(records: Sequence[Record]) -> None:
    first: dict[tuple[str, float], Record] = {}
    for record in records:
        audit = record.audit
        if audit is None or not any(check.values for check in audit.checks):
            continue
        other = first.setdefault((audit.model_dump_json(include={"checks"}), audit.seconds), record)
        if other.spec.model.parameters_sha256 != record.spec.model.parameters_sha256:
            raise _contradiction(record, other, "has the same audit, of other weights")
        gradient = audit.subject.gradient_sha256
        if len(gradient) == len(audit.subject.parameters_sha256):  # else it says in words why there is none
            other = first.setdefault((gradient, -1.0), record)
            if other.spec.model.parameters_sha256 != record.spec.model.parameters_sha256:
                raise _contradiction(record, other, "has the same gradient, of other weights")


def _require_proofs(records: Sequence[Record]) -> None:
    for certificate in (record for record in records if record.kind == "certificate"):
        for attack in (record for record in records if record.kind == "attack"):
            if broken := broken_proof(certificate, attack):
                raise _contradiction(attack, certificate, broken)


def _require_several_networks(row: Row, records: Sequence[Record]) -> None:
    for what in ("parameters_sha256", "probe_sha256"):
        first: dict[tuple[str, str], Record] = {}
        for record in records:
            if what == "probe_sha256" and record.kind == "certificate":
                continue  # its answers are votes, which different networks share
            model = record.spec.model
            other = first.setdefault((getattr(model, what), record.spec.data.digest), record)
            if other.spec.model.name != model.name:
                same = "weights" if what == "parameters_sha256" else "answers on the first batch"
                raise _contradiction(record, other, f"has the same {same}, as another training of row '{row.title}'")


def only_one(records: Sequence[Record]) -> Record:
    """Return the newest of records of one cell, which must have one table.

    Raises:
        BadInputError: two of them have different outcomes, so that a choice would decide the number.
    """
    best = max(records, key=lambda record: record.created)
    for other in records:
        if other.outcomes_file.sha256 != best.outcomes_file.sha256:
            raise _contradiction(best, other, "fills the same cell with other outcomes", fix="keep one of them")
    return best


def _contradiction(record: Record, other: Record, what: str, fix: str = "") -> BadInputError:
    names = [str(either.path or either.spec.stem()) for either in (record, other)]
    return BadInputError(f"record {names[0]} {what}; the other is {names[1]}", fix=fix or "leave the false one out")


def broken_proof(certificate: Record, attack: Record) -> str | None:
    """Return the first sample whose proven answer an attack changed, in words; None where the records agree.

    Of a model that draws noise an attack sees some draws only. So a changed answer counts where, over all images that
    the attack showed, so few votes are less likely than `LEVEL`; and of many proofs a share `alpha` may be wrong.
    """
    if not _same(certificate, attack):
        return None
    asked, made = (
        parse_scenario(dict(own.spec.protocol.resolved), own.spec.protocol.name) for own in (certificate, attack)
    )
    proof = proof_of(certificate.spec.model.config, "the model's configuration")
    assert isinstance(asked, Certificate)
    assert isinstance(made, Attack)
    assert proof is not None, "the rule votes-give-radius"
    places = {sample: at for at, sample in enumerate(certificate.outcomes["sample"].tolist())}
    rows = np.array([places.get(sample, -1) for sample in attack.outcomes["sample"].tolist()])
    attacked = attack.outcomes.where(rows >= 0)
    proven = certificate.outcomes.where(rows[rows >= 0])
    reach = _reach(asked, made, attacked)

    def chance(at: int) -> float:
        share = proof.share(int(proven["votes"][at]), int(proven["rival"][at]), float(reach[at]), asked.alpha)
        return _chance(share, made.draws, int(attacked["forwards"][at]))

    changed = (proven["prediction"] >= 0) & (attacked["prediction"] != proven["prediction"])
    changed &= (proven["radius"] > 0) & (reach <= proven["radius"])
    odd = [at for at in np.flatnonzero(changed).tolist() if chance(at) < LEVEL]
    if not odd or not _too_many(len(odd), len(proven), asked.alpha):
        return None
    first = odd[0]
    return (
        f"answers sample '{attacked['sample'][first]}' by class {attacked['prediction'][first]} at a distance of "
        f"{reach[first]:.6g}, though class {proven['prediction'][first]} is proven up to {proven['radius'][first]:g}"
    )


def _same(certificate: Record, attack: Record) -> bool:
    """Whether they are of one network on one set of images."""
    mine, theirs = certificate.spec, attack.spec
    what = [
        (spec.model.network, spec.code.get("model"), spec.data.name, spec.data.split, spec.data.resized)
        for spec in (mine, theirs)
    ]
    return what[0] == what[1]


def furthest(asked: Certificate, made: Attack) -> float:
    """Return how far an attack goes at most, in the units of the radius; infinite where this is not known."""
    threat, sided = made.threat, made.norm == "l0" or isinstance(made.patch, int)
    if made.space != "pixel":
        return np.inf
    if asked.norm == "l2":
        return made.eps if made.norm == "l2" else np.inf
    if asked.norm == "l0":
        return float(threat.count * threat.side**2) if sided and threat.counted else np.inf
    return float(threat.side) if made.norm == "patches" and sided and made.eps <= asked.eps else np.inf


def _reach(asked: Certificate, made: Attack, outcomes: Outcomes) -> NDArray[np.float64]:
    """Return how far each deciding image is away, in the units of the radius; infinite where this is not known."""
    if asked.norm == "l2":
        away: NDArray[np.float64] = outcomes["l2"] * (1 + 1e-5) + 1e-6
        return away
    return np.full(len(outcomes), np.float32(furthest(asked, made)), np.float64)  # as columns hold radii


def _chance(share: float, draws: int, forwards: int) -> float:
    """Return at most how likely it is that no more than half of the draws are for the class, on any image shown."""
    from scipy import special  # importing it takes a moment

    return float((forwards / draws + 1) * special.bdtr(draws // 2, draws, min(max(share, 0.0), 1.0)))


def _too_many(odd: int, count: int, alpha: float) -> bool:
    """Whether so many false proofs of `count` are less likely than `LEVEL`, where each is false with `alpha`."""
    from scipy import special  # importing it takes a moment

    return float(special.bdtrc(odd - 1, count, alpha)) < LEVEL
