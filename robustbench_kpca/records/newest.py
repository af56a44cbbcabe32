"""Of records that were made of one thing again and again, the newest is the current one; older ones are set aside."""

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.record import SUFFIX, Record

Parted = tuple[list[Record], list[Record]]
"""The current records, in their order, and those that are set aside."""


def newest(records: Sequence[Record], thing: Callable[[Record], Hashable]) -> Parted:
    """Keep the newest record of every `thing`, such as of one model's name, data and protocol.

    Raises:
        BadInputError: the two newest state the same time and have other outcomes, so that a choice would decide the
            number.
    """
    kept = {thing(record): record for record in sorted(records, key=_created)}
    for record in records:
        rival = kept[thing(record)]
        if record.created == rival.created and record.outcomes_file.sha256 != rival.outcomes_file.sha256:
            files = " and ".join(_files(one) for one in (record, rival))
            raise BadInputError(f"of {files} neither is newer, and their outcomes differ", fix="delete one of them")
    return _part(records, kept.values())


def current(records: Sequence[Record]) -> Parted:
    """Keep the newest record of one model's name, data and protocol, where it is of the model's newest weights.

    A record of older weights says nothing of the network that a name stands for now, so it is set aside even where no
    newer one is of its protocol.
    """
    kept, _ = newest(records, lambda record: (_named(record), record.spec.protocol.name))
    weights = {_named(record): record.spec.model.parameters_sha256 for record in sorted(kept, key=_created)}
    return _part(records, [one for one in kept if one.spec.model.parameters_sha256 == weights[_named(one)]])


def remark(aside: Sequence[Record]) -> str:
    """Say which records were set aside, and which files may be deleted; "" for none."""
    files = ", ".join(map(_files, aside))
    reason = "since a newer record, or newer weights, of the model are there; delete these files if nobody needs them"
    return f"set aside, {reason}: {files}" if aside else ""


def _files(record: Record) -> str:
    """Name the files of a record as a shell would find them: itself, its table and its images."""
    return f"{str(record.path or record.spec.stem()).removesuffix(SUFFIX)}.*"


def _created(record: Record) -> str:
    return record.created


def dated(record: Record, folder: Path) -> Record:
    """Date a stored record anew where a newer one of its name, samples, protocol and seed is of another model or code.

    The network was evaluated again after another one, as when a change is taken back, so it is the current one again.
    """
    siblings = folder.glob(f"{record.spec.stem().rpartition('__')[0]}__*{SUFFIX}")
    if not any(_replaces(path, record) for path in siblings):
        return record
    again = record.model_copy(update={"created": now()})
    again.save(folder)
    return again


def now() -> str:
    """Return the time to a thousandth of a second, so that of two records of one second the newer one is known."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _replaces(path: Path, record: Record) -> bool:
    ours = record.spec.model_dump(mode="json")
    try:
        content = json.loads(path.read_bytes())
        theirs, newer = content["spec"], content["created"] >= record.created
        same_data = theirs["data"]["digest"] == ours["data"]["digest"]
        return bool(newer and same_data and any(theirs[part] != ours[part] for part in ("model", "code")))
    except (OSError, ValueError, KeyError, TypeError):  # no record that is read here
        return False


def _part(records: Sequence[Record], kept: Iterable[Record]) -> Parted:
    chosen = {id(record) for record in kept}
    return [one for one in records if id(one) in chosen], [one for one in records if id(one) not in chosen]


def _named(record: Record) -> tuple[str, str, str]:
    spec = record.spec
    return spec.model.name, spec.data.name, spec.data.split
