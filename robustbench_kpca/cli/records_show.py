"""`rbk records show`: print records, and check their metrics by computing them again from the outcomes."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json

if TYPE_CHECKING:
    import pandas as pd

    from robustbench_kpca.metrics import Unit
    from robustbench_kpca.protocols.scenario import Scenario
    from robustbench_kpca.records.record import Record
    from robustbench_kpca.tasks.pages import Pages


def show(
    records: Annotated[list[Path], typer.Argument(help="Records (*.record.json), or folders with records.")],
    json: Json = False,
) -> None:
    """Print records, and check their metrics by computing them again from the per-sample outcomes."""
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.consistency import load_consistent

    paths = [path for place in records for path in find_records(place)]
    if json:
        loaded = (load_consistent(path) for path in paths)
        _console.show_json_list(record.model_dump(mode="json") | _pages(record).details(record) for record in loaded)
        return
    for path in paths:  # one at a time: tables may be large
        record = load_consistent(path)
        _console.show_table("", ("", ""), _rows(record))
        for title, table in _pages(record).tables(record):
            _console.show_frame(title, _spell(table, _pages(record).unit))


def _pages(record: "Record") -> "Pages":
    from robustbench_kpca.tasks import task_named

    return task_named(record.spec.data.task).pages


def _spell(table: "pd.DataFrame", unit: "Unit") -> "pd.DataFrame":
    return table.map(lambda value: f"{value:.{unit.digits}f}").replace("nan", "–").reset_index()


def _chance(record: "Record", name: str) -> str:
    chance = _pages(record).chance(record, name)
    return "" if chance is None else f", chance {chance:.4f}"


def _command(record: "Record") -> str:
    """Return the command that remakes the record, or the call from Python."""
    if not record.command:
        return "not recorded"
    return shlex.join(record.command) if len(record.command) > 1 else record.command[0]


def _audit(record: "Record") -> str:
    """Say which audit the record holds, and its flags."""
    from robustbench_kpca.records.audit_versions import summary

    if record.audit is None:
        return "none"
    return f"{record.audit.plan.level}, {len(record.audit.checks)} checks: {summary(record.audit)}"


def _pictures(scenario: "Scenario") -> list[tuple[str, str]]:
    from robustbench_kpca.protocols.scenario import Corruption

    if isinstance(scenario, Corruption):
        return [("pictures", f"{scenario.made}, {scenario.mode}")]
    return []


def _agreement(record: "Record") -> list[tuple[str, str]]:
    from robustbench_kpca.tasks.caveats import agreement_of_record, in_full

    agreement = agreement_of_record(record)
    return [] if agreement is None else [("agreement", in_full(agreement))]


def _rows(record: "Record") -> list[tuple[str, str]]:
    from robustbench_kpca.metrics import telling
    from robustbench_kpca.protocols.scenario import Attack

    spec, environment, passes = record.spec, record.environment, record.passes
    scenario = spec.protocol.scenario
    model, data, table = spec.model, spec.data, record.outcomes_file
    code = [f"{name} {digest[:16]}" for name, digest in spec.code.items()]
    code += [f"{name} {version}" for name, version in record.algorithms.items()]
    return [
        ("model", f"{model.name} ({model.parameters:,} parameters, sha256 {model.parameters_sha256[:16]})"),
        ("data", f"{data.name} {data.split}, n = {data.n}, digest {data.digest[:16]}"),
        ("protocol", f"{spec.protocol.name}: {scenario.title}, digest {spec.protocol.digest[:16]}"),
        *_agreement(record),
        *_pictures(scenario),
        *([("threat", scenario.budget)] if isinstance(scenario, Attack) else []),
        ("seed, batch", f"{spec.seed}, {spec.batch_size}"),
        *(
            (name, f"{record.metrics[name]} ({record.metrics[name].method}){_chance(record, name)}")
            for name in telling(record.metrics, data.classes)
        ),
        ("passes", f"{passes.forwards:,} forward, {passes.backwards:,} backward"),
        ("outcomes", f"{table.file}, {table.rows} rows; metrics computed again from them: equal"),
        ("command", _command(record)),
        *([("audit", _audit(record))] if record.kind == "attack" else []),
        ("made", f"{record.created} in {record.seconds:.1f} s on {environment.processor}, {environment.device}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in environment.packages.items())),
        ("revision", environment.revision or "installed package"),
        *([("code", ", ".join(code))] if code else []),
        *(("flag", flag) for flag in record.flags),
        *(("cite", citation) for citation in record.citations),
    ]
