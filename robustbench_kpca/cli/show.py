"""`rbk show`: records for human eyes, their metrics remade from their outcomes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json

if TYPE_CHECKING:
    import pandas as pd

    from robustbench_kpca.protocols.scenario import Scenario
    from robustbench_kpca.records.record import Record


def show(
    records: Annotated[list[Path], typer.Argument(help="Records (*.record.json), or folders of them.")],
    json: Json = False,
) -> None:
    """Show records, and check that their metrics follow from their per-sample outcomes."""
    from robustbench_kpca.records.record import find_records
    from robustbench_kpca.report.consistency import load_consistent

    loaded = [load_consistent(path) for place in records for path in find_records(place)]
    if json:
        _console.show_json([record.model_dump(mode="json") | _cells(record) for record in loaded])
        return
    for record in loaded:
        _console.show_table("", ("", ""), _rows(record))
        _show_cells(record)


def _show_cells(record: "Record") -> None:
    """Print what a record says by corruption, by group and by class, in percent."""
    scenes = record.outcomes.kind in ("segmentation", "segmentation-attack")
    if _has_cells(record):
        from robustbench_kpca.report.cells import by_corruption, by_group

        error = "1 - mIoU" if scenes else "Error"
        _console.show_frame(f"{error} by corruption and severity, percent", _spell(by_corruption(record)))
        if scenes:
            groups = [(group, f"{100 * value:.1f}") for group, value in by_group(record).items()]
            _console.show_table(f"{error} by group, percent", ("group", "mean"), groups)
    if scenes:
        from robustbench_kpca.report.pixels import classes

        _console.show_frame("By class, percent", _spell(classes(record.outcomes, record.spec.data.class_names)))


def _has_cells(record: "Record") -> bool:
    outcomes = record.outcomes
    return outcomes.kind in ("corruption", "segmentation") and bool((outcomes["severity"] > 0).any())


def _spell(table: "pd.DataFrame") -> "pd.DataFrame":
    return table.map(lambda value: f"{value:.1f}").replace("nan", "–").reset_index()


def _chance(record: "Record", name: str) -> str:
    from robustbench_kpca.metrics import metric_for

    chance = metric_for(name).chance
    return "" if chance is None else f", chance {chance(record.outcomes):.4f}"


def _cells(record: "Record") -> dict[str, Any]:
    from robustbench_kpca.report.cells import by_group, cells
    from robustbench_kpca.report.pixels import classes

    kind = record.outcomes.kind
    found: dict[str, Any] = {}
    if kind in ("corruption", "segmentation"):
        found = {"cells": cells(record)} | ({"groups": by_group(record)} if _has_cells(record) else {})
    if kind in ("segmentation", "segmentation-attack"):
        table = (classes(record.outcomes, record.spec.data.class_names) / 100).reset_index()
        found["classes"] = table.astype(object).where(table.notna(), None).to_dict("records")
    return found


def _pictures(scenario: "Scenario") -> list[tuple[str, str]]:
    from robustbench_kpca.protocols.scenario import Corruption, Segmentation

    if isinstance(scenario, Corruption | Segmentation) and scenario.corruptions:
        return [("pictures", f"{scenario.made}, {scenario.mode}")]
    return []


def _rows(record: "Record") -> list[tuple[str, str]]:
    from robustbench_kpca.protocols.scenario import Attack, parse_scenario

    spec, environment, passes = record.spec, record.environment, record.passes
    scenario = parse_scenario(dict(spec.protocol.resolved), spec.protocol.name)
    model, data, table = spec.model, spec.data, record.outcomes_file
    return [
        ("model", f"{model.name} ({model.parameters:,} parameters, sha256 {model.parameters_sha256[:16]})"),
        ("data", f"{data.name} {data.split}, n = {data.n}, digest {data.digest[:16]}"),
        ("protocol", f"{spec.protocol.name}: {scenario.title}, digest {spec.protocol.digest[:16]}"),
        *_pictures(scenario),
        *([("threat", f"{scenario.threat} in {scenario.space} space")] if isinstance(scenario, Attack) else []),
        ("seed, batch", f"{spec.seed}, {spec.batch_size}"),
        *(
            (name, f"{estimate} ({estimate.method}){_chance(record, name)}")
            for name, estimate in record.metrics.items()
        ),
        ("passes", f"{passes.forwards:,} forward, {passes.backwards:,} backward"),
        ("outcomes", f"{table.file}, {table.rows} rows; metrics remade from them: equal"),
        ("made", f"{record.created} in {record.seconds:.1f} s on {environment.processor}, {environment.device}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in environment.packages.items())),
        ("revision", environment.revision or "installed package"),
        *(("flag", flag) for flag in record.flags),
        *(("cite", citation) for citation in record.citations),
    ]
