"""Records made ready to be handed in: every rule checked, a random part of each made again, all in one folder.

The folder has `records/` (records, tables and what else lies beside them), `spot-check.json`, `SUBMISSION.md` (what was
checked, and the commands) and `SHA256SUMS` of all these files, which `sha256sum -c` checks and `ssh-keygen -Y sign`
signs (docs/decisions/0041).
"""

import os
import re
import shutil
from collections.abc import Sequence
from html import escape
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import (
    replace_file,
    require_file,
    require_writable,
    safe_file,
    sha256,
    whole_folder,
)
from robustbench_kpca.records.audit import FOLDER as AUDITS
from robustbench_kpca.records.audit import AuditFile
from robustbench_kpca.records.images import load_images
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spot_check import FILE, SpotCheck, lines

PAGE, SUMS = "SUBMISSION.md", "SHA256SUMS"


def write_submission(records: Sequence[Record], check: SpotCheck, to: Path) -> list[str]:
    """Write the folder, whole or not at all; return its files.

    Args:
        records: checked (`report.consistency`), each read from a file.

    Raises:
        BadInputError: as `require_new`, or rows of a record differ.
        EvaluationError: the disk is full.
    """
    require_new(records, to)
    for record in records:
        entry = check.entry(record)
        if entry is not None and entry.differing:
            raise BadInputError(
                f"{entry.differing} of {entry.rows} rows of {record.spec.stem()} differ when they are made again",
                fix="evaluate again; see: rbk records verify",
            )
    with whole_folder(to, "submission") as made:
        for record in records:
            assert record.path is not None
            for path in _files(record):
                copy = made / "records" / path.relative_to(record.path.parent)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        replace_file(made / FILE, check.content(), durable=False)
        replace_file(made / PAGE, page(records, check).encode(), durable=False)
        files = sorted(str(path.relative_to(made)).replace("\\", "/") for path in made.rglob("*") if path.is_file())
        sums = "".join(f"{sha256((made / file).read_bytes())}  {file}\n" for file in files)
        replace_file(made / SUMS, sums.encode(), durable=False)
    return [*files, SUMS]


def require_new(records: Sequence[Record], to: Path) -> None:
    """Refuse, before anything is evaluated, what could not be written.

    Raises:
        BadInputError: the folder is there or cannot be made, two records have one name, or a file cannot be handed in.
    """
    stems = [record.spec.stem() for record in records]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise BadInputError(f"two records of {twice}", fix="leave one of them out")
    for record in records:
        _require_whole(record)
    if os.path.lexists(to):
        raise BadInputError(f"{to} is there already", fix="name a new folder")
    require_writable(to.parent)


def _require_whole(record: Record) -> None:
    """Refuse files beside a record that are not what it says; `load_record` has read all but the images."""
    path, *_ = _files(record)
    if record.images_file is not None:
        load_images(path.parent, record.images_file)


def _files(record: Record) -> list[Path]:
    """Return a record's file and those that it names.

    Raises:
        BadInputError: one is a symbolic link, so that a file of another folder would be handed in, or no ordinary file.
    """
    assert record.path is not None
    folder = record.path.parent
    named = [record.path, folder / record.outcomes_file.file]
    named += [folder / safe_file(record.images_file.file)] if record.images_file is not None else []
    named += [AuditFile.of(record.audit).path(folder)] if record.audit is not None else []
    for path in [*named, folder / AUDITS]:
        if path.is_symlink():
            raise BadInputError(f"{path} is a symbolic link", expected="an ordinary file in the folder of the record")
    for path in named:
        require_file(path)
    return named


def page(records: Sequence[Record], check: SpotCheck) -> str:
    """Return SUBMISSION.md."""
    rows = [
        f"| {_cell(r.spec.model.name)} | {_cell(r.spec.data.name)} ({_cell(r.spec.data.split)}) "
        f"| {_cell(r.spec.protocol.name)} | {r.spec.data.n} | {_checked(check, r)} |"
        for r in records
    ]
    return "\n".join(
        [
            "# Records handed in",
            "",
            "| model | data | protocol | samples | made again |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "## What was checked",
            "",
            "- Every table has the hash that its record states, every metric follows from its table, and every rule of",
            "  docs/trust.md holds.",
            *(f"- {_cell(line)}" for line in lines(check, records)),
            "",
            "## Commands",
            "",
            "```sh",
            "sha256sum -c SHA256SUMS                         # the files are those that were handed in",
            "rbk records show records                        # check every rule again",
            f"rbk records verify records/NAME.record.json --samples {check.samples}   # make a part of one again",
            "ssh-keygen -Y sign -f KEY -n rbk SHA256SUMS      # sign; the signature is SHA256SUMS.sig",
            "ssh-keygen -Y verify -f SIGNERS -I WHO -n rbk -s SHA256SUMS.sig < SHA256SUMS",
            "```",
            "",
        ]
    )


def _checked(check: SpotCheck, record: Record) -> str:
    entry = check.entry(record)
    return "not checked" if entry is None else _cell(f"{entry.samples} samples, {entry.verdict}")


def _cell(text: str) -> str:
    """Return text from a record so that markdown shows it as it is."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return re.sub(r"([\\|\[\]`*_])", r"\\\1", escape(shown, quote=False))
