"""Records made ready to be handed in: every rule checked, a random part of each made again, all in one folder.

The folder has `records/` (records, tables and what else lies beside them), `spot-check.json`, `SUBMISSION.md` (what was
checked, and the commands) and `SHA256SUMS` of all these files, which `sha256sum -c` checks and `ssh-keygen -Y sign`
signs (docs/decisions/0041).
"""

import glob
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
    safe_name,
    sha256,
    whole_folder,
)
from robustbench_kpca.records.audit import SUFFIX as AUDIT
from robustbench_kpca.records.audit import load_audit
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
        (made / "records").mkdir()
        for record in records:
            for path in _files(record):
                shutil.copyfile(path, made / "records" / path.name)
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
    """Refuse files beside a record that are not what their names say."""
    for path in _files(record):
        if path.name.endswith(AUDIT):
            load_audit(path)
        elif record.images_file is not None and path.name == record.images_file.file:
            load_images(path.parent, record.images_file)


def _files(record: Record) -> list[Path]:
    """Return a record's file and those beside it that belong to it.

    Raises:
        BadInputError: one is a symbolic link, so that a file of another folder would be handed in, or no ordinary file.
    """
    assert record.path is not None
    folder = record.path.parent
    named = [record.path, folder / record.outcomes_file.file]
    named += [folder / safe_file(record.images_file.file)] if record.images_file is not None else []
    audits = sorted(folder.glob(f"{glob.escape(safe_name(record.spec.model.name))}__*{AUDIT}"))
    for path in [*named, *audits]:
        if path.is_symlink():
            raise BadInputError(f"{path} is a symbolic link", expected="an ordinary file in the folder of the record")
        require_file(path)
    return named + audits


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
