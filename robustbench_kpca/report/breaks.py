"""Breaks: images that others found beside our own attack. Which records are of them, and what each adds to a number."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from robustbench_kpca._core.web.marks import unquoted
from robustbench_kpca.metrics.accuracy import correct
from robustbench_kpca.protocols.scenario import Attack, Imported
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record


def imported_of(record: Record) -> Imported | None:
    """Return who found the images of a record; None where it is of our own attack."""
    if "imported" not in record.spec.protocol.resolved:
        return None
    scenario = attack_of(record)
    return None if scenario is None else scenario.imported


def by_model(records: Iterable[Record], leading: Mapping[str, Record]) -> tuple[dict[str, list[Record]], list[str]]:
    """Return the breaks of each network that a board shows, oldest first, and a sentence about others of its name."""
    imported: dict[str, list[Record]] = {}
    stale = []
    for record in sorted(filter(imported_of, records), key=lambda record: (record.created, record.spec.stem())):
        model, found = record.spec.model, imported_of(record)
        if model.name in leading and found is not None:
            if leading[model.name].spec.model.network == model.network:
                imported.setdefault(model.name, []).append(record)
            else:
                stale.append(f"Images by {unquoted(found.by)} are of other weights of {model.name}, and lower nothing.")
    return imported, stale


def within_set(record: Record, our_record: Record) -> bool:
    """Tell whether a break's set lies in that of our own attack, around the same clean images."""
    imported, ours = attack_of(record), attack_of(our_record)
    if imported is None or ours is None or record.spec.data.digest != our_record.spec.data.digest:
        return False
    inside = imported.eps <= ours.eps and replace(imported.threat, eps=ours.eps) == ours.threat
    return inside and (imported.space, imported.draws) == (ours.space, ours.draws)


def unbroken(outcomes: Outcomes) -> set[str]:
    """Return the samples that an attack left right."""
    return set(outcomes["sample"][correct(outcomes)].tolist())


def standing(records: Iterable[Record]) -> set[str]:
    """Return the samples that all of some records left right."""
    return set.intersection(*(unbroken(record.outcomes) for record in records))


def breakers(records: Sequence[Record]) -> Iterator[tuple[Imported, int]]:
    """Return who broke how many samples of a number that nobody had broken before.

    Args:
        records: those of our own attacks, then the breaks, oldest first.
    """
    breaks = [(record, found) for record in records if (found := imported_of(record)) is not None]
    if not breaks:
        return
    left = standing(record for record in records if imported_of(record) is None)
    for record, found in breaks:
        after = left & unbroken(record.outcomes)
        if len(after) < len(left):
            yield found, len(left) - len(after)
        left = after


def attack_of(record: Record) -> Attack | None:
    """Return the attack that a record states; None where it is of something else."""
    scenario = record.spec.protocol.scenario
    return scenario if isinstance(scenario, Attack) else None
