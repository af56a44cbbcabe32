"""Records that are shown together do not contradict one another: what each of them may state, all cannot."""

from collections.abc import Iterable, Sequence

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board_spec import Row
from robustbench_kpca.report.networks import one_answer, one_name, own_outcomes, own_weights
from robustbench_kpca.report.proofs import broken_proof
from robustbench_kpca.tasks.facts import labels


def require_no_contradiction(records: Iterable[Record], rows: Iterable[Row]) -> None:
    """Refuse records of which at least one is false.

    One digest of data stands for one number of samples, of classes, and one label of each sample. Trainings of a row
    are different networks, which answer differently. An audit is of one network. What a certificate proves of a sample,
    no attack on that network changes. On a board, which has rows, the rules of `report.networks` hold, too.
    """
    every = list(records)
    _require_one_set_each(every)
    _require_own_audits(every)
    _require_proofs(every)
    named = list(rows)
    for row in named:
        _require_several_networks(row, [record for record in every if record.spec.model.name in row.models])
    for rule in (own_weights, one_answer, one_name, own_outcomes) if named else ():
        for record, other, what in rule(every):
            raise _contradiction(record, other, what)


def _require_one_set_each(records: Sequence[Record]) -> None:
    first: dict[str, Record] = {}
    for record in records:
        data, other = record.spec.data, first.setdefault(record.spec.data.digest, record)
        for what, stated, before in (
            ("samples", data.n, other.spec.data.n),
            ("classes", data.classes, other.spec.data.classes),
            ("labels", labels(record), labels(other)),
        ):
            if stated != before:
                differing = labels(record).items() ^ labels(other).items() if what == "labels" else ()
                where = f", such as '{min(differing)[0]}'," if differing else ""
                what = f"has other {what}{where} under one digest of data, {data.digest[:12]}"
                raise _contradiction(record, other, what)


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
                continue  # answers of a certificate are votes, which different networks share
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


def _contradiction(record: Record, other: Record | None, what: str, fix: str = "") -> BadInputError:
    names = [str(either.path or either.spec.stem()) for either in (record, other) if either is not None]
    and_other = f"; the other is {names[1]}" if other is not None else ""
    return BadInputError(f"record {names[0]} {what}{and_other}", fix=fix or "leave the false one out")
