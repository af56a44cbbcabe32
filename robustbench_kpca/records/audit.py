"""The audit of a model: evidence for or against "the attacks saw the model's true weaknesses"; its records name it.

The compute half makes audits (`audit`), records carry them, boards show them; this file needs no torch. An audit is one
file in the folder `audits` beside the records, however many of them name it.
"""

import glob
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file, safe_file, safe_name, sha256, write_atomic
from robustbench_kpca._core.strict import STRICT, validate_json

FOLDER, SUFFIX = "audits", ".audit.json"


class Check(BaseModel):
    """One question to the model. It is flagged if any value exceeds the limit; without values it did not apply.

    Without a limit it is a mark: it says what is so, and flags nothing.
    """

    model_config = STRICT
    name: str
    values: dict[str, Annotated[float, Field(allow_inf_nan=False)]]
    limit: float | None
    flag: bool
    saw: str
    why: str

    @model_validator(mode="after")
    def _flag_follows(self) -> "Check":
        if self.flag != (self.limit is not None and any(value > self.limit for value in self.values.values())):
            raise BadInputError(f"check '{self.name}': its flag does not follow from its values and limit")
        return self


class Budget(BaseModel):
    """An attack of the audit: the protocol with what was set in it, and the digest of what that resolved to."""

    model_config = STRICT
    protocol: str
    digest: str


Level = Literal["full", "quick"]
"""How much an audit asks: every check, or those that `audit_versions.CHECKS` has for a quick one."""


class Plan(BaseModel):
    """Everything the audit was told; equal digests mean the same questions.

    `level` is part of the digest unless it is `full`, and `sibling` always: so digests of older audits still hold.
    """

    model_config = STRICT
    norm: Literal["linf"]
    eps: float
    images: int
    seed: int
    batch_size: int
    attacks: dict[str, Budget]
    limits: dict[str, float]
    sibling: None = None
    level: Level = "full"

    def digest(self) -> str:
        """SHA-256 of the plan."""
        content = self.model_dump(mode="json", exclude={"level"} if self.level == "full" else None)
        return sha256(json.dumps(content, sort_keys=True).encode())


class Subject(BaseModel):
    """Which model was asked on which images.

    `probe_sha256` is of its logits on the first batch of them, and `gradient_sha256` of the gradient of cross-entropy
    there, or says in words why there is none: two models with equal weights and answers may still hide gradients.
    """

    model_config = STRICT
    model: str
    parameters_sha256: str
    probe_sha256: str
    gradient_sha256: str
    data: str
    split: str
    data_digest: str


class Audit(BaseModel):
    """The answers. `version` and `revision` are of the code that asked; `schema_version` is that of the questions.

    `seconds` is the audit's own time, in no record's `seconds`.
    """

    model_config = STRICT
    schema_version: Literal[1, 2, 3, 4] = 4
    subject: Subject
    plan: Plan
    plan_digest: str
    checks: tuple[Check, ...]
    version: str
    revision: str | None
    seconds: float

    @model_validator(mode="after")
    def _digest_follows(self) -> "Audit":
        if self.plan_digest != self.plan.digest():
            raise BadInputError(f"the audit of '{self.subject.model}': its digest does not follow from its plan")
        return self

    @property
    def flags(self) -> tuple[Check, ...]:
        """The checks that were flagged."""
        return tuple(check for check in self.checks if check.flag)

    def content(self) -> bytes:
        """Return what its file holds."""
        return (self.model_dump_json(indent=1) + "\n").encode()

    def save(self, folder: Path) -> Path:
        """Write its file below the folder of its records, whole or not at all, unless it is there; return its path."""
        path = AuditFile.of(self).path(folder)
        if not path.is_file() or read_file(path, "audit") != self.content():
            write_atomic(path, self.content())
        return path


class AuditFile(BaseModel):
    """What a record's file says of its audit: the file in the folder `audits` beside it; `sha256` is of its content.

    The name says which model was asked what on which data, and holds the first digits of the digest. So no audit ever
    replaces another, which some record may name.
    """

    model_config = STRICT
    file: str
    sha256: str

    @classmethod
    def of(cls, audit: Audit) -> "AuditFile":
        """Describe the file of an audit."""
        digest = sha256(audit.content())
        return cls(file=f"{_stem(audit.subject, audit.plan)}.{digest[:12]}{SUFFIX}", sha256=digest)

    def path(self, folder: Path) -> Path:
        """Return where it lies, for records in a folder."""
        return folder / FOLDER / safe_file(self.file)

    def read(self, folder: Path) -> Audit:
        """Read it.

        Raises:
            BadInputError: missing, damaged, or another audit.
        """
        path = self.path(folder)
        if not path.exists():
            raise BadInputError(f"{path} is missing, which a record names", fix="restore it, or evaluate again")
        content = read_file(path, "audit")
        if sha256(content) != self.sha256:
            raise BadInputError(
                f"{path} is not the audit that its record names (SHA-256 differs)",
                fix="restore both files, or evaluate again",
            )
        return validate_json(Audit, content, str(path))


def audits_of(folder: Path, subject: Subject, plan: Plan) -> list[Path]:
    """Return the files of audits of exactly this subject under this plan, made at different times or by other code."""
    return sorted((folder / FOLDER).glob(f"{glob.escape(_stem(subject, plan))}.*{SUFFIX}"))


def _stem(subject: Subject, plan: Plan) -> str:
    identity = sha256((subject.model_dump_json() + plan.digest()).encode())
    parts = [subject.model, f"{subject.data}-{subject.split}", f"seed{plan.seed}"]
    return f"{safe_name('__'.join(safe_name(part) for part in parts))}__{identity[:8]}"


def load_audit(path: Path) -> Audit:
    """Read an audit.

    Raises:
        BadInputError: missing, damaged, or a flag that does not follow from its numbers.
    """
    return validate_json(Audit, read_file(path, "audit"), str(path))
