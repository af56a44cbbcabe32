"""Delete tables and images that no record names: what a host left that wrote the same evaluation, and lost.

Names hold a digest of the content, so two hosts that write one evaluation write two tables, and the record that was
renamed last decides which one counts. The other is deleted by a later `save` of the same evaluation.
"""

import json
import time
from pathlib import Path

from robustbench_kpca._core.files import OLD
from robustbench_kpca.records.images import SUFFIX as IMAGES
from robustbench_kpca.records.text import SUFFIX as TABLE

_DIGITS = "[0-9a-f]" * 12


def sweep(record: Path, suffix: str) -> list[Path]:
    """Delete what lies beside a record under its name, is not named by it, and is older than a day; return the paths.

    A day, since another host may have written its table and not yet its record.
    """
    stem = record.name.removesuffix(suffix)
    patterns = [f"{stem}.{_DIGITS}{end}" for end in (TABLE, IMAGES)]
    old = [path for pattern in patterns for path in record.parent.glob(pattern) if _is_old(path)]
    named = _named(record) if old else None
    if named is None:
        return []
    swept = [path for path in old if path.name not in named]
    for path in swept:
        path.unlink(missing_ok=True)
    return swept


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
