"""A record is accepted only if everything in it follows from its own outcomes, which keep the rules of its task."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.evaluation.versions import algorithms
from robustbench_kpca.metrics import METRICS, measure
from robustbench_kpca.protocols.scenario import Attack, Scenario, parse_scenario
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.record import Record, find_records, load_record
from robustbench_kpca.tasks import task_named


def load_consistent(path: Path, only: Collection[str] | None = None) -> Record:
    """Load a record; remake its metrics from its per-sample outcomes, and its protocol digest from what it resolved to.

    `only` the metrics of these names are remade, where names are given: those that the caller shows. Metrics from
    outside the package are not compared: they are made again, and those that are not known here are left out.

    Raises:
        BadInputError: as `load_record`, or something stated does not follow.
    """
    record = load_record(path)
    protocol = record.spec.protocol
    scenario, digest = _scenario(protocol.resolved, path)
    task = task_named(record.spec.data.task)
    table = task.table(scenario.table)
    if not table.fits(record.outcomes_file.columns):
        raise BadInputError(
            f"{path}: its table has the columns {', '.join(record.outcomes_file.columns)}",
            expected=f"those of {task.name} under protocols of kind '{scenario.kind}': {', '.join(table.columns)}",
            fix="evaluate again",
        )
    rows, samples = len(record.outcomes), len(record.outcomes.numbered("sample")[1])
    if not rows:
        raise BadInputError(f"{path}: its table has no rows", expected="a row for each sample", fix="evaluate again")
    remade = measure(record.outcomes, scenario, only)
    unknown = sorted(name for name in record.metrics if name not in METRICS)
    for name in {*remade, *record.metrics}.difference(METRICS.added, unknown) if only is None else only:
        if name not in METRICS.added and not _same(remade.get(name), record.metrics.get(name)):
            raise _odd(path, f"{name} = {record.metrics.get(name)}", f"its outcomes ({remade.get(name)})")
    if digest != protocol.digest:
        raise _odd(path, f"protocol digest {protocol.digest[:12]}", "the protocol it resolved to")
    if samples != record.spec.data.n:
        raise _odd(path, f"n = {record.spec.data.n}", f"its outcomes ({samples} samples)")
    for name, rule in {**task.pages.rules, "known-algorithms": known_algorithms}.items():
        wrong = rule(record, scenario)
        if wrong is not None:
            raise BadInputError(f"{path} breaks the rule '{name}': {wrong}", fix="evaluate again")
    return _with_outside(record, remade, unknown)


def known_algorithms(record: Record, scenario: Scenario) -> str | None:
    """Check that versions are those that algorithms of the package have had, and code that of all others."""
    ours, code = algorithms(scenario), record.spec.code
    for name, version in record.algorithms.items():
        if version > ours.get(name, 0):
            has = f"has {ours[name]} here" if name in ours else "is none of the package, or of its protocol"
            return f"version {version} of '{name}', which {has}"
    if both := sorted(ours.keys() & code.keys()):
        return f"it states the code of '{both[0]}', which is one of the package"
    stages = scenario.stage if isinstance(scenario, Attack) else ()
    for name in (f"attack {stage.attack}" for stage in stages):
        if name not in ours and name not in code:
            return f"'{name}' is none of the package, and its code is not stated"
    return None


def load_all(places: Iterable[Path]) -> list[Record]:
    """Load the records of files and folders, each as `load_consistent` does."""
    return [load_consistent(path) for place in places for path in find_records(place)]


def _with_outside(record: Record, remade: Mapping[str, Estimate], unknown: Sequence[str]) -> Record:
    """Return a record with the metrics from outside the package as they are here."""
    outside = {name: value for name, value in remade.items() if name in METRICS.added}
    if not outside and not unknown:
        return record
    metrics = {name: value for name, value in record.metrics.items() if name not in unknown} | outside
    flags = [f"metric {name} is of a plugin that is not loaded here, and is not shown" for name in unknown]
    return record.model_copy(update={"metrics": dict(sorted(metrics.items())), "flags": (*record.flags, *flags)})


def _scenario(resolved: Mapping[str, Any], path: Path) -> tuple[Scenario, str]:
    try:
        return _parsed(json.dumps(resolved))
    except BadInputError:
        parse_scenario(dict(resolved), str(path))  # the same error, with the path
        raise


@lru_cache(maxsize=256)
def _parsed(resolved: str) -> tuple[Scenario, str]:
    """Parse a protocol and compute its digest: once for all records of one protocol."""
    scenario = parse_scenario(json.loads(resolved), "protocol")
    return scenario, scenario.digest()


def _same(estimate: Estimate | None, other: Estimate | None) -> bool:
    """Whether two estimates are equal, up to the rounding in which processors differ."""
    if estimate is None or other is None:
        return estimate is other
    pairs = zip((estimate.value, estimate.low, estimate.high), (other.value, other.low, other.high), strict=True)
    same = all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs)
    return same and (estimate.n, estimate.method) == (other.n, other.method)


def _odd(path: Path, stated: str, source: str) -> BadInputError:
    return BadInputError(f"{path}: {stated} does not follow from {source}", fix="evaluate again")
