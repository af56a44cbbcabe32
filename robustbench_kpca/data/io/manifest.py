"""The manifest of a folder of generated images: settings, digests of sources and files, and whether it is complete."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import as_csv, write_atomic

SETTINGS, TABLE = "manifest.json", "manifest.csv"
HEADER = ("file", "sha256", "source_sha256")
_DIGEST = 64


class Made(NamedTuple):
    """One generated file: its path in the folder, and the SHA-256 of the file and of its source."""

    file: str
    sha256: str
    source_sha256: str


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Return the content of `manifest.json`, or None if there is no such file."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(
            f"{path} cannot be read ({reason_of(error)})", fix="restore it, or make the folder again"
        ) from None
    if not isinstance(content, dict):
        raise BadInputError(f"{path} is not a manifest", fix="restore it, or make the folder again")
    return content


def write_settings(folder: Path, content: dict[str, Any]) -> None:
    """Write `manifest.json`."""
    write_atomic(folder / SETTINGS, (json.dumps(content, indent=1) + "\n").encode())


def require_finished(folder: Path) -> None:
    """Refuse a folder of generated images that is incomplete because `rbk images corrupt` was interrupted."""
    settings = read_settings(folder)
    if settings is not None and settings.get("finished") is False:
        raise BadInputError(f"{folder} is not finished", fix="run the same rbk images corrupt command again")


def read_table(folder: Path) -> dict[str, Made]:
    """Return the rows of `manifest.csv` by file name; an incomplete last row is ignored."""
    path = folder / TABLE
    if not path.is_file():
        return {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [Made(*row) for row in csv.reader(file) if len(row) == len(HEADER)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(
            f"{path} cannot be read ({reason_of(error)})", fix="restore it, or make the folder again"
        ) from None
    return {row.file: row for row in rows if len(row.sha256) == len(row.source_sha256) == _DIGEST}


def write_table(folder: Path, rows: Iterable[Made]) -> None:
    """Write `manifest.csv`, sorted, so that its bytes do not depend on the order of work."""
    write_atomic(folder / TABLE, as_csv([Made(*HEADER), *sorted(rows)]).encode())
