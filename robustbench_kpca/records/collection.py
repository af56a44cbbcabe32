"""Many records at once: a folder is loaded as `Records`, which become a table with one row a record or one a sample."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.record import Record, find_records, html_table, load_record

if TYPE_CHECKING:
    import pandas as pd

By = Literal["record", "sample"]
SHOWN = 50  # records in the table of a notebook


class Records(Sequence[Record]):
    """Records in order; `records[0]` is a record, `records[:5]` are records.

    Examples:
        >>> from robustbench_kpca import Records, evaluate
        >>> Records([evaluate("vit_digits", protocol="clean", quiet=True)])
        Records(1 records of 1 model)
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = tuple(records)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> "Records": ...
    def __getitem__(self, index: int | slice) -> "Record | Records":
        records = self._records[index]
        return Records(records) if isinstance(records, tuple) else records

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __repr__(self) -> str:
        models = len({record.spec.model.name for record in self})
        return f"Records({len(self)} records of {models} {'model' if models == 1 else 'models'})"

    def _repr_html_(self) -> str:
        more = f"<p>and {len(self) - SHOWN} more: records.to_frame()</p>" if len(self) > SHOWN else ""
        return html_table(record.cells for record in self._records[:SHOWN]) + more

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
            facts = {
                name: value for name, value in record.facts.items() if name in ("model", "data", "protocol", "seed")
            }
            frames.append(pd.DataFrame({**facts, **record.outcomes.columns}))
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

    Examples:
        >>> from tempfile import mkdtemp
        >>> from robustbench_kpca import evaluate, load_records
        >>> made = evaluate("vit_digits", protocol="clean", out=(folder := mkdtemp()), quiet=True)
        >>> load_records(folder)
        Records(1 records of 1 model)
    """
    return Records([load_record(path) for path in find_records(folder)])


def _row(record: Record) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return three groups of columns: what was evaluated, the metrics, and how it was made."""
    metrics = {
        f"{name}{end}": value
        for name, estimate in record.metrics.items()
        for end, value in (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high))
    }
    making = {
        "forwards": record.passes.forwards,
        "backwards": record.passes.backwards,
        "seconds": record.seconds,
        "audit": record.audit_words,
        "flags": "; ".join(record.flags),
        "parameters": record.spec.model.parameters,
        "parameters_sha256": record.spec.model.parameters_sha256,
        "device": record.environment.device,
        "created": record.created,
        "record": record.outcomes_file.stem,
    }
    return record.facts, metrics, making
