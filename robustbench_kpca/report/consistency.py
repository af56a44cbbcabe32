"""A record is believed only as far as it follows from its own outcomes."""

from pathlib import Path

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.record import Record, load_record


def load_consistent(path: Path) -> Record:
    """Load a record; remake its metrics from its per-sample outcomes, and its protocol digest from what it resolved to.

    Raises:
        BadInputError: as `load_record`, or something stated does not follow.

    """
    record = load_record(path)
    protocol = record.spec.protocol
    scenario = parse_scenario(dict(protocol.resolved), str(path))
    remade = measure(record.outcomes, scenario)
    for name in {*remade, *record.metrics}:
        if remade.get(name) != record.metrics.get(name):
            raise _odd(path, f"{name} = {record.metrics.get(name)}", f"its outcomes ({remade.get(name)})")
    if scenario.digest() != protocol.digest:
        raise _odd(path, f"protocol digest {protocol.digest[:12]}", "the protocol it resolved to")
    samples = len(set(record.outcomes["sample"].tolist()))
    if samples != record.spec.data.n:
        raise _odd(path, f"n = {record.spec.data.n}", f"its outcomes ({samples} samples)")
    return record


def _odd(path: Path, stated: str, source: str) -> BadInputError:
    return BadInputError(f"{path}: {stated} does not follow from {source}", fix="evaluate again")
