"""A sweep: one trained network under every combination of some of its options, and a table of what each one gets."""

import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import as_csv, write_atomic
from robustbench_kpca._core.strict import parse_assignments
from robustbench_kpca._core.web.marks import code, plain
from robustbench_kpca.metrics import leading, metric_for
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named

Options = Mapping[str, Any]
Measured = Sequence[tuple[Options, Record]]
"""What was measured: the options of the model, and one of its records."""
_INTRO = (
    "One trained network: the weights are the same in every row, and only the options differ, so nothing was trained "
    "for these options. 95 % intervals are over {}."
)


def combinations(settings: Sequence[str]) -> list[dict[str, Any]]:
    """Return every combination of the values in `KEY=V1,V2,...`; those of the last key vary fastest.

    Values are read as TOML if possible (numbers, lists such as `[0,1]`), else as text between commas.

    Raises:
        BadInputError: a setting of another form, without values, or with a key or value that is given twice.
    """
    axes: dict[str, list[Any]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip().removeprefix("model.")
        values = _values(text)
        if not equals or not key or "" in values or not values:
            raise BadInputError(f"'{setting}'", expected="KEY=VALUE,VALUE,..., such as lam=0.5,1,2")
        if key in axes or any(value in values[:at] for at, value in enumerate(values)):
            raise BadInputError(f"'{setting}' repeats a key or a value", expected="each once")
        axes[key] = values
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())]


def _values(text: str) -> list[Any]:
    try:
        values: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        return [parse_assignments([f"value={part}"])["value"] for part in text.split(",")]
    return values


def frame(measured: Measured) -> pd.DataFrame:
    """Return one row per combination: its options, and for each protocol the leading metric with its interval."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for options, record in measured:
        metric = metric_for(leading(record.metrics))
        estimate, unit = record.metrics[metric.name], metric.unit
        title = f"{record.spec.protocol.name}: {unit.label(metric.title)}{' ↓' if metric.lower_is_better else ''}"
        row = rows.setdefault(tuple(map(str, options.values())), {key: str(value) for key, value in options.items()})
        row[title] = f"{unit.number(estimate.value)} {unit.interval(estimate.low, estimate.high)}"
    return pd.DataFrame(list(rows.values())).fillna("")


def markdown(measured: Measured, command: str) -> str:
    """Render sweep.md."""
    spec = measured[0][1].spec
    words = task_named(spec.data.task).pages
    options = list(measured[0][0])
    table = frame(measured)
    table = table.rename(columns=plain)
    table = table.apply(lambda column: column.map(code if column.name in map(plain, options) else str))
    data = f"{spec.data.n} {words.samples} of {plain(spec.data.name)} ({plain(spec.data.split)})"
    lines = [
        f"# {plain(spec.model.source)}: {plain(', '.join(options))}",
        _INTRO.format(words.resampled),
        table.to_markdown(index=False, disable_numparse=True),
        f"{data}, seed {spec.seed}. sweep.csv has all metrics.",
        f"Made by `{command}`.",
    ]
    return "\n\n".join(lines) + "\n"


def csv_text(measured: Measured) -> str:
    """Render sweep.csv: one row per combination, protocol and metric; values and intervals without unit."""
    rows: list[list[object]] = [[*measured[0][0], "protocol", "metric", "value", "low", "high", "n", "record"]]
    for options, record in measured:
        for name, estimate in record.metrics.items():
            numbers = (f"{value:.9g}" for value in (estimate.value, estimate.low, estimate.high))
            rows.append([*options.values(), record.spec.protocol.name, name, *numbers, estimate.n, record.spec.stem()])
    return as_csv(rows)


def write_sweep(measured: Measured, folder: Path, command: str) -> list[Path]:
    """Write sweep.md and sweep.csv, each whole or not at all; return their paths."""
    pages = {"sweep.md": markdown(measured, command), "sweep.csv": csv_text(measured)}
    for name, text in pages.items():
        write_atomic(folder / name, text.encode())
    return [folder / name for name in pages]
