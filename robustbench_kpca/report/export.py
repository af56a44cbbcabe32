"""Records in the formats of other tools: csv, json, parquet and LaTeX."""

import io
from collections.abc import Sequence

import pandas as pd

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.records.collection import By, Records
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.table import spell

FORMATS = ("csv", "json", "parquet", "latex")
BINARY = ("parquet",)


def export(records: Records, to: str, by: By = "record") -> bytes:
    """Return the records in a format of one file; see `Records.to_frame` for the columns and `by`.

    `latex` is a table (booktabs) of one row a record: `93.4 [90.9, 95.3]`, the value with its 95 % interval.

    Raises:
        BadInputError: an unknown format; a format that has no rows by sample; a library that is not installed.
    """
    if to not in FORMATS:
        raise BadInputError(f"format '{to}'", expected=f"one of {', '.join(FORMATS)}")
    if by != "record" and to == "latex":
        raise BadInputError(f"format '{to}' by {by}", expected="csv, json or parquet for one row a sample")
    if to == "latex":
        return _latex(records).encode()
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
    columns = "llrl" + "r" * (len(table.columns) - 4)
    return str(table.to_latex(index=False, escape=True, column_format=columns))
