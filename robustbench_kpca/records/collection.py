"""Many records at once: a folder is loaded as `Records`, which become a table with one row a record or one a sample."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.record import Record, find_records, load_record

if TYPE_CHECKING:
    import pandas as pd

By = Literal["record", "sample"]
SHOWN = 50  # records in the table of a notebook
_COLUMNS = ("model", "data", "split", "n", "protocol", "kind", "norm", "eps", "seed", "batch_size")


class Records(Sequence[Record]):
    """Records in order; `records[0]` is a record, `records[:5]` are records."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = tuple(records)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> "Records": ...
    def __getitem__(self, index: int | slice) -> "Record | Records":
        found = self._records[index]
        return Records(found) if isinstance(found, tuple) else found

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __repr__(self) -> str:
        models = len({record.spec.model.name for record in self})
        return f"Records({len(self)} records of {models} {'model' if models == 1 else 'models'})"

    def _repr_html_(self) -> str:
        more = f"<p>and {len(self) - SHOWN} more: records.to_frame()</p>" if len(self) > SHOWN else ""
        return html_table(self._records[:SHOWN]) + more

    def to_frame(self, by: By = "record") -> "pd.DataFrame":
        """Return a table.

        Args:
            by: `record`: one row a record: what was evaluated, and for every metric NAME its value and the ends of its
                95 % interval, NAME_low and NAME_high. `sample`: one row per row of the outcomes (one a sample, or one a
                sample, corruption and severity), with the model and the protocol before them.

        Raises:
            BadInputError: another value of `by`.

        """
        import pandas as pd

        if by == "record":
            rows = [_row(record) for record in self]
            names = list(dict.fromkeys(name for part in range(3) for row in rows for name in row[part]))
            return pd.DataFrame([row[0] | row[1] | row[2] for row in rows], columns=pd.Index(names))
        if by != "sample":
            raise BadInputError(f"by = {by!r}", expected="'record' or 'sample'")
        frames = []
        for record in self:
            given = {
                name: value for name, value in facts(record).items() if name in ("model", "data", "protocol", "seed")
            }
            frames.append(pd.DataFrame({**given, **record.outcomes.columns}))
        if not frames:
            return pd.DataFrame()
        whole = {name for frame in frames for name in frame.select_dtypes("int64").columns}
        table = pd.concat(frames, ignore_index=True)
        return table.astype({name: "Int64" for name in whole if table[name].dtype != "int64"})  # some lack the column


def load_records(folder: Path | str) -> Records:
    """Load every record below a folder, sorted by path. It does not import torch.

    Args:
        folder: the folder that `rbk eval --out` wrote, or the path of one record.

    Returns:
        The records; `records.to_frame()` is a table of them.

    Raises:
        BadInputError: there is none, or one of them cannot be read, see `load_record`.

    """
    return Records([load_record(path) for path in find_records(folder)])


def facts(record: Record) -> dict[str, Any]:
    """Return what was evaluated: model, data, protocol and how; without an attack `norm` and `eps` are None."""
    spec, resolved = record.spec, record.spec.protocol.resolved
    values = (
        spec.model.name, spec.data.name, spec.data.split, spec.data.n, spec.protocol.name, record.kind,
        resolved.get("norm"), resolved.get("eps"), spec.seed, spec.batch_size,
    )  # fmt: skip
    return dict(zip(_COLUMNS, values, strict=True))


def audited(record: Record) -> str | None:
    """Return the names of the audit's flags, `clear` without one, `none` without an audit; None if nothing attacked."""
    if record.kind != "attack":
        return None
    return "none" if record.audit is None else ", ".join(check.name for check in record.audit.flags) or "clear"


def _row(record: Record) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return three groups of columns: what was evaluated, the metrics, and how it was made."""
    metrics = {
        f"{name}{end}": value
        for name, estimate in record.metrics.items()
        for end, value in (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high))
    }
    made = {
        "forwards": record.passes.forwards,
        "backwards": record.passes.backwards,
        "seconds": record.seconds,
        "audit": audited(record),
        "flags": "; ".join(record.flags),
        "parameters": record.spec.model.parameters,
        "parameters_sha256": record.spec.model.parameters_sha256,
        "device": record.environment.device,
        "created": record.created,
        "record": record.outcomes_file.stem,
    }
    return facts(record), metrics, made


def html_table(records: Sequence[Record]) -> str:
    """Return an HTML table for notebooks: one row a record, with its metrics; every text is escaped."""
    head = "".join(
        f"<th>{name}</th>" for name in ("model", "data", "n", "protocol", "metrics (95 % interval)", "audit")
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_html_row, records))}</tbody></table>"


def _html_row(record: Record) -> str:
    about: Mapping[str, Any] = facts(record)
    metrics = "<br>".join(
        f"{escape(name)} {found.value:.4f} [{found.low:.4f}, {found.high:.4f}]"
        for name, found in record.metrics.items()
    )
    texts = [about["model"], f"{about['data']} {about['split']}", about["n"], about["protocol"]]
    cells = [escape(str(text)) for text in texts] + [metrics, escape(audited(record) or "")]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
