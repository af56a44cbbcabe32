"""Records in the formats of other tools: csv, json, parquet, LaTeX, and the files of RobustBench.

RobustBench (Croce et al. 2021, arXiv:2010.09670; github.com/RobustBench/robustbench) keeps
`model_info/DATASET/THREAT/MODEL.json`. Accuracies are texts in percent, with two digits. What a record cannot know (the
paper, its authors, extra training data) is null, to be filled in by hand.
"""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import safe_name
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Attack, parse_scenario
from robustbench_kpca.records.collection import By, Records
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.table import spell

FORMATS = ("csv", "json", "parquet", "latex", "robustbench")
BINARY = ("parquet",)
_AUTOATTACK = {"linf": ("autoattack-linf-8_255", "Linf"), "l2": ("autoattack-l2-128_255", "L2")}
"""Norm -> the protocol that is the standard AutoAttack, and RobustBench's name of the threat."""
_CORRUPTED = {"cifar10": "cifar10-c"}
"""Data set of RobustBench's corruption files -> the name of the corrupted set here."""


def export(records: Records, to: str, by: By = "record") -> bytes:
    """Return the records in a format of one file; see `Records.to_frame` for the columns and `by`.

    `latex` is a table (booktabs) of one row a record: `93.4 [90.9, 95.3]`, the value with its 95 % interval.
    `robustbench` is one JSON object: the path of a file below RobustBench's `model_info` -> its content.

    Raises:
        BadInputError: an unknown format; a format that has no rows by sample; a library that is not installed; no
            record that RobustBench has a place for.
    """
    if to not in FORMATS:
        raise BadInputError(f"format '{to}'", expected=f"one of {', '.join(FORMATS)}")
    if by != "record" and to in ("latex", "robustbench"):
        raise BadInputError(f"format '{to}' by {by}", expected="csv, json or parquet for one row a sample")
    if to == "latex":
        return _latex(records).encode()
    if to == "robustbench":
        return (json.dumps(model_infos(records), indent=2) + "\n").encode()
    table = records.to_frame(by)
    if to == "csv":
        return bytes(table.to_csv(index=False, lineterminator="\n").encode())
    if to == "json":
        return (str(table.to_json(orient="records", indent=1, double_precision=15)) + "\n").encode()
    return _parquet(table)


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    try:
        table.to_parquet(buffer, index=False)
    except ImportError:
        raise BadInputError(
            "format 'parquet' needs pyarrow, which is not installed", fix="pip install pyarrow"
        ) from None
    return buffer.getvalue()


def _latex(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        about = record.facts
        row = {"Model": about["model"], "Data": f"{about['data']} {about['split']}", "n": about["n"]}
        row["Protocol"] = about["protocol"]
        for name, estimate in record.metrics.items():
            metric = metric_for(name)
            row[metric.unit.label(metric.title)] = spell(estimate, metric.unit)
        rows.append(row)
    table = pd.DataFrame(rows).fillna("--").map(str)
    table.columns = pd.Index([_escape(name) for name in table.columns])
    columns = "llrl" + "r" * (len(table.columns) - 4)
    return str(table.map(_escape).to_latex(index=False, escape=False, column_format=columns))


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    letter: f"\\{letter}" for letter in "&%$#_{}"
}


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def model_infos(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return path -> content of the files that these records fill: standard AutoAttack in L-infinity or L2, CIFAR-10-C.

    Raises:
        BadInputError: no record has a place there, or two records have the same.
    """
    infos: dict[str, dict[str, Any]] = {}
    for record in records:
        made = _attacked(record) or _corrupted(record)
        if made is None:
            continue
        path, content = made
        if path in infos:
            raise BadInputError(f"two records for {path}", fix="export one seed and one number of images")
        infos[path] = content
    if not infos:
        names = ", ".join(name for name, _ in _AUTOATTACK.values())
        raise BadInputError(
            "no record that RobustBench has a place for", expected=f"records under {names} or cifar10-c"
        )
    return infos


def _attacked(record: Record) -> tuple[str, dict[str, Any]] | None:
    scenario = parse_scenario(dict(record.spec.protocol.resolved), record.spec.protocol.name)
    if not isinstance(scenario, Attack) or scenario.norm not in _AUTOATTACK or "robust_accuracy" not in record.metrics:
        return None
    standard, threat = _AUTOATTACK[scenario.norm]
    if load_scenario(standard, {"eps": scenario.eps})[1].digest() != scenario.digest():
        return None
    measured = {
        "eps": str(scenario.threat).partition(" ")[2],
        "clean_acc": _percent(record, "clean_accuracy"),
        "reported": None,
        "autoattack_acc": _percent(record, "robust_accuracy"),
        "unreliable": None if record.audit is None else bool(record.audit.flags),
    }
    return _path(record, record.spec.data.name, threat), _content(record, record.spec.data.name, measured)


def _corrupted(record: Record) -> tuple[str, dict[str, Any]] | None:
    protocol = record.spec.protocol
    data = next((name for name, stored in _CORRUPTED.items() if protocol.name == stored), None)
    if data is None or "corruption_accuracy" not in record.metrics:
        return None
    if load_scenario(_CORRUPTED[data])[1].digest() != protocol.digest or record.spec.data.name != _CORRUPTED[data]:
        return None
    clean = _percent(record, "clean_accuracy") if "clean_accuracy" in record.metrics else None
    measured = {
        "eps": None,
        "clean_acc": clean,
        "reported": None,
        "corruptions_acc": _percent(record, "corruption_accuracy"),
    }
    return _path(record, data, "corruptions"), _content(record, data, measured)


def _content(record: Record, data: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    unknown = dict.fromkeys(("link", "name", "authors", "additional_data", "number_forward_passes"))
    architecture = str(record.spec.model.config.get("name", record.spec.model.name))
    note = f"{record.spec.data.n} images of {record.spec.data.name} ({record.spec.data.split}); see the record."
    return {**unknown, "dataset": data, "venue": None, "architecture": architecture, **measured, "footnote": note}


def _path(record: Record, data: str, threat: str) -> str:
    return f"model_info/{safe_name(data)}/{threat}/{safe_name(record.spec.model.name)}.json"


def _percent(record: Record, metric: str) -> str:
    return f"{100 * record.metrics[metric].value:.2f}"
