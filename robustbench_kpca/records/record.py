"""The record of one evaluation: what is needed to run it again, to check it, and to compare it with another.

The compute half writes records, and the report half reads them. Files of another schema are refused, and what no record
names is deleted. This file imports no torch.
"""

import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, field_serializer
from tabulate import tabulate

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import OLD, read_file, safe_file, sha256, write_atomic
from robustbench_kpca._core.strict import STRICT, validate
from robustbench_kpca.records.audit import Audit, AuditFile
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.images import SUFFIX as IMAGES
from robustbench_kpca.records.images import ImagesFile
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.spec import Environment, Passes, Spec
from robustbench_kpca.records.table import ColumnType, Table
from robustbench_kpca.records.text import SUFFIX as TABLE
from robustbench_kpca.records.text import most_bytes, pack, unpack

SUFFIX = ".record.json"
SCHEMA_VERSION = 4
_SAVED = "saved"
"""Serialised for the record's own file."""
DIGITS = 12
"""Hexadecimal digits of its content in the name of a file beside a record."""


class NewerSchemaError(BadInputError):
    """A record written by a later version: it is neither read nor replaced."""


class OutcomesFile(BaseModel):
    """The per-sample table beside the record; `columns` are names and types.

    `sha256` is of its uncompressed text. The name holds its first digits, so that two records of one evaluation never
    share a file.
    """

    model_config = STRICT
    file: str
    sha256: str
    rows: int
    columns: Annotated[dict[str, ColumnType], Field(min_length=1)]

    @classmethod
    def of(cls, outcomes: Outcomes, spec: "Spec") -> "OutcomesFile":
        """Describe the table that lies beside the record of `spec`."""
        digest = outcomes.digest()
        name = f"{spec.stem()}.{digest[:DIGITS]}{TABLE}"
        return cls(file=name, sha256=digest, rows=len(outcomes), columns=dict(outcomes.table.columns))

    @property
    def stem(self) -> str:
        """Its name without digest and suffix: that of the record beside it."""
        return self.file.removesuffix(f".{self.sha256[:DIGITS]}{TABLE}")


class Record(BaseModel):
    """One evaluation. Saved as `<stem>.record.json` beside `<stem>.<digest>.outcomes.csv.xz`.

    Records of attacks should have an `audit` of the model; other records need none. The saved record names its file
    (`AuditFile`). `images_file` says which file beside it holds adversarial images, where some were kept.
    `command` remakes it: the words of an `rbk eval` command, or the call from Python, in short, as a single item; older
    records have none.
    `algorithms` are versions of the attacks or corruptions of the package that made it, and of the attack loop, such as
    `attack pgd` -> 1. A record of other versions than today's is made again; what an older one does not name is 1.

    Examples:
        >>> from robustbench_kpca import evaluate
        >>> evaluate("vit_digits", protocol="clean", quiet=True).spec.data.n
        364
    """

    model_config = STRICT
    schema_version: Literal[4] = 4
    spec: Spec
    metrics: dict[str, Estimate]
    passes: Passes
    outcomes_file: OutcomesFile
    environment: Environment
    citations: tuple[str, ...]
    flags: tuple[str, ...]
    created: str
    seconds: float
    command: tuple[str, ...] = ()
    algorithms: dict[str, Annotated[int, Field(ge=1)]] = {}
    audit: Audit | None = None
    images_file: ImagesFile | None = None
    _outcomes: Outcomes | None = PrivateAttr(default=None)
    _path: Path | None = PrivateAttr(default=None)

    @field_serializer("audit", mode="wrap")
    def _by_name(self, audit: Audit | None, whole: Any, info: Any) -> Any:
        """Return the audit, or in the record's own file what names it."""
        return whole(audit) if audit is None or info.context != _SAVED else AuditFile.of(audit).model_dump()

    def __repr__(self) -> str:
        """Name what was evaluated, and its metrics, in one line."""
        spec, values = self.spec, "".join(f", {name}={estimate.value:.4f}" for name, estimate in self.metrics.items())
        data = f"{spec.data.name}/{spec.data.split}"
        return f"Record({spec.model.name!r}, {data!r}, {spec.protocol.name!r}, n={spec.data.n}{values})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_table([self.cells])

    @property
    def cells(self) -> tuple[str, ...]:
        """What a notebook shows of it, as texts: model, data, number of samples, protocol, metrics, audit."""
        data = self.spec.data
        metrics = (
            f"{name} {estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"
            for name, estimate in self.metrics.items()
        )
        about = self.spec.model.name, f"{data.name} {data.split}", str(data.n), self.spec.protocol.name
        return (*about, "\n".join(metrics), self.audit_words or "")

    @property
    def facts(self) -> dict[str, Any]:
        """What was evaluated: model, data, protocol and how; without an attack `norm` and `eps` are None."""
        spec, resolved = self.spec, self.spec.protocol.resolved
        return {
            "model": spec.model.name, "data": spec.data.name, "split": spec.data.split, "n": spec.data.n,
            "protocol": spec.protocol.name, "kind": self.kind, "norm": resolved.get("norm"),
            "eps": resolved.get("eps"), "seed": spec.seed, "batch_size": spec.batch_size,
        }  # fmt: skip

    @property
    def audit_words(self) -> str | None:
        """The names of its audit's flags, `clear` without one, `none` without an audit; None if nothing attacked."""
        if self.kind != "attack":
            return None
        return "none" if self.audit is None else ", ".join(check.name for check in self.audit.flags) or "clear"

    @property
    def kind(self) -> str:
        """The kind of its protocol, such as `attack`."""
        return str(self.spec.protocol.resolved.get("kind"))

    @property
    def outcomes(self) -> Outcomes:
        """The per-sample table this record was made from or loaded with; read again after `release`."""
        if self._outcomes is None:
            assert self._path is not None
            return _read_again(self, self._path)
        return self._outcomes

    @property
    def path(self) -> Path | None:
        """The file it was read from; None: it was made in this process."""
        return self._path

    @property
    def held(self) -> bool:
        """Whether its table is in memory."""
        return self._outcomes is not None

    def release(self) -> None:
        """Forget the table of a record that was read from a file; `outcomes` reads and checks it again."""
        if self._path is not None:
            object.__setattr__(self, "_outcomes", None)

    def attach(self, outcomes: Outcomes) -> "Record":
        """Join the table to its record.

        Raises:
            BadInputError: it is another table.
        """
        self.require_table(outcomes.digest(), len(outcomes))
        object.__setattr__(self, "_outcomes", outcomes)
        return self

    def require_table(self, digest: str, rows: int | None = None) -> None:
        """Refuse a table that the record was not made from, by its digest and number of rows."""
        stated = self.outcomes_file
        if digest != stated.sha256 or rows not in (None, stated.rows):
            raise BadInputError(
                f"{stated.file} is not the table its record was made from (SHA-256 or number of rows differs)",
                fix="restore both files, or evaluate again",
            )

    def audited(self, audit: Audit) -> "Record":
        """Return this record with the audit of its model.

        Raises:
            BadInputError: see `require_own`.
        """
        self.require_own(audit)
        return self.model_copy(update={"audit": audit})

    def keeping(self, images: ImagesFile) -> "Record":
        """Return this record with the file of adversarial images that lies beside it."""
        return self.model_copy(update={"images_file": images})

    def require_own(self, audit: Audit) -> None:
        """Refuse an audit that is not of this record's model and data.

        Answers can be compared where audit and record are of the same images in batches of one size, each shown once.

        Raises:
            BadInputError: the audit is of another model or other data, or the record claims no robustness.
        """
        if self.kind != "attack":
            raise BadInputError(f"an audit for {self.spec.stem()}, which is no attack", fix="leave it out")
        subject, ours = audit.subject, self.spec
        same = subject.parameters_sha256 == ours.model.parameters_sha256
        same = same and (subject.data, subject.split) == (ours.data.name, ours.data.split)
        batches = (subject.data_digest, audit.plan.batch_size) == (ours.data.digest, ours.batch_size)
        if batches and ours.protocol.resolved.get("draws", 1) == 1:
            same = same and subject.probe_sha256 == ours.model.probe_sha256
        if not same:
            raise BadInputError(
                f"the audit of '{subject.model}' is of another model or other data than {ours.stem()}",
                fix="evaluate again",
            )

    def save(self, folder: Path) -> Path:
        """Write audit, table and record, each whole or not at all; return the record's path.

        The record's file decides: a table that it does not name is an orphan, which a later `save` deletes.
        """
        if self.audit is not None:
            self.audit.save(folder)
        write_atomic(folder / self.outcomes_file.file, pack(self.outcomes.to_csv()))
        path = folder / f"{self.spec.stem()}{SUFFIX}"
        write_atomic(path, (self.model_dump_json(indent=1, context=_SAVED) + "\n").encode())
        _sweep(path)
        return path


def load_record(path: Path | str) -> Record:
    """Read a record, its table and its audit, and check that they belong together.

    Raises:
        BadInputError: missing, truncated, written by another version, with an altered table or audit, or with another
            model's audit.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> from robustbench_kpca import evaluate, load_record
        >>> made = evaluate("vit_digits", protocol="clean", out=(folder := mkdtemp()), quiet=True)
        >>> [path] = Path(folder).glob("*.record.json")
        >>> load_record(path).metrics == made.metrics
        True
    """
    path = Path(path)
    content = _require_schema(read_file(path, "record"), path)
    if content.get("audit") is not None:
        content["audit"] = validate(AuditFile, content["audit"], f"{path}, audit").read(path.parent)
    record = validate(Record, content, str(path))
    object.__setattr__(record, "_path", path)
    object.__setattr__(record, "_outcomes", _read_table(record, path))
    if record.audit is not None:
        record.require_own(record.audit)
    return record


def _require_schema(text: bytes, path: Path) -> dict[str, Any]:
    """Return the content of a record's JSON, if it is of the one schema that is read.

    Raises:
        NewerSchemaError: it was written by a later version.
        BadInputError: it was written by an earlier version, or is no record.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        version = content["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInputError(f"{path} is no record", expected="a JSON file written by rbk eval") from None
    if version == SCHEMA_VERSION:
        return content
    newer = not isinstance(version, int) or version > SCHEMA_VERSION
    raise (NewerSchemaError if newer else BadInputError)(
        f"{path} has record schema {version}",
        expected=f"schema {SCHEMA_VERSION}",
        fix="upgrade robustbench-kpca" if newer else "evaluate again",
    )


_LATEST: deque[tuple[str, Outcomes]] = deque(maxlen=2)
"""The tables that were read again last: two, because a board compares two models in one corruption after another."""


def _read_again(record: Record, path: Path) -> Outcomes:
    """Return the table of a record that was released; of 3.75 million rows it takes half a minute to read."""
    key = repr(record.outcomes_file)
    known = dict(_LATEST).get(key)
    if known is None:
        known = _read_table(record, path)
        _LATEST.append((key, known))
    return known


def _read_table(record: Record, path: Path) -> Outcomes:
    """Read the table beside the record at `path`, and check that it is the one that the record was made from."""
    table = path.parent / safe_file(record.outcomes_file.file)
    if not table.exists():
        raise BadInputError(f"{table} is missing beside {path.name}", fix="restore it, or evaluate again")
    stated, where = record.outcomes_file, str(table)
    columns = Table(record.spec.data.task, record.kind, stated.columns)
    most = most_bytes(columns, stated.rows, where)
    text = unpack(read_file(table, "table", most), most, where)
    record.require_table(sha256(text))  # refuse it before anything in it is parsed
    outcomes = Outcomes.from_text(text, columns, where)
    record.require_table(stated.sha256, len(outcomes))
    return outcomes


def _sweep(record: Path) -> None:
    """Delete what lies beside a record under its name, is not named by it, and is older than a day.

    Two hosts that write one evaluation write two tables, since names hold a digest of the content; the record that was
    renamed last decides which one counts. A day, since another host may have written its table and not yet its record.
    """
    stem = record.name.removesuffix(SUFFIX)
    patterns = [f"{stem}.{'[0-9a-f]' * DIGITS}{end}" for end in (TABLE, IMAGES)]
    old = [path for pattern in patterns for path in record.parent.glob(pattern) if _is_old(path)]
    named = _named(record) if old else None
    for path in old:
        if named is not None and path.name not in named:
            path.unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > OLD
    except OSError:
        return False


def _named(record: Path) -> set[str] | None:
    """Return the files that a record names, or None if that cannot be told."""
    try:
        content = json.loads(record.read_bytes())
        images = content.get("images_file")
        return {str(content["outcomes_file"]["file"]), *([str(images["file"])] if images else [])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def find_records(folder: Path | str) -> list[Path]:
    """List every record below a folder (or the one record named), sorted."""
    folder = Path(folder)
    if folder.is_file():
        return [folder]
    paths = sorted(folder.rglob(f"*{SUFFIX}"))
    if not paths:
        raise BadInputError(f"no *{SUFFIX} below {folder}", fix="run: rbk eval … --out FOLDER")
    return paths


def html_table(rows: Iterable[Sequence[str]]) -> str:
    """Return the table of `cells` that notebooks show, one row a record; every text is escaped."""
    head = ("model", "data", "n", "protocol", "metrics (95 % interval)", "audit")
    cells = [[escape(cell).replace("\n", "<br>") for cell in row] for row in rows]
    return str(tabulate(cells, head, tablefmt="unsafehtml", disable_numparse=True))
