"""Images that others found beside our own attack: which records are of them, and what they add to a column."""

from collections.abc import Iterable, Mapping

from robustbench_kpca._core.web.marks import unquoted
from robustbench_kpca.protocols.scenario import Attack, Imported, parse_scenario
from robustbench_kpca.records.record import Record


def imported_of(record: Record) -> Imported | None:
    """Return who found the images of a record; None where it is of our own attack."""
    if "imported" not in record.spec.protocol.resolved:
        return None
    scenario = _attack(record)
    return None if scenario is None else scenario.imported


def by_model(records: Iterable[Record], leading: Mapping[str, Record]) -> dict[str, list[Record]]:
    """Return the records of images that others found, by model, of the network that a board shows; oldest first."""
    imported: dict[str, list[Record]] = {}
    for record in sorted(filter(imported_of, records), key=lambda record: (record.created, record.spec.stem())):
        model = record.spec.model
        if model.name in leading and leading[model.name].spec.model.network == model.network:
            imported.setdefault(model.name, []).append(record)
    return imported


def same_set(record: Record, our_record: Record) -> bool:
    """Tell whether the images lie in the perturbation set of our own attack, around the same clean images."""
    imported, ours = _attack(record), _attack(our_record)
    if imported is None or ours is None or record.spec.data.digest != our_record.spec.data.digest:
        return False
    return (imported.threat, imported.space, imported.draws) == (ours.threat, ours.space, ours.draws)


def who(records: Iterable[Record]) -> str:
    """Name everybody who found images, with method and digest of the file; empty where nobody did."""
    named = [(record.spec.model.name, imported) for record in records if (imported := imported_of(record))]
    return "; ".join(
        unquoted(f"{model} by {imported.by} ({imported.method}, SHA-256 {imported.sha256[:12]})")
        for model, imported in named
    )


def _attack(record: Record) -> Attack | None:
    scenario = parse_scenario(dict(record.spec.protocol.resolved), record.spec.protocol.name)
    return scenario if isinstance(scenario, Attack) else None
