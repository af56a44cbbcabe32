"""The schema of records: files of another one are refused."""

import json
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError

SCHEMA_VERSION = 3


class NewerSchemaError(BadInputError):
    """A record written by a later version: it is neither read nor replaced."""


def require_schema(text: bytes, path: Path) -> bytes:
    """Return a record's JSON, if it is of the one schema that is read.

    Raises:
        NewerSchemaError: it was written by a later version.
        BadInputError: it was written by an earlier version, or is no record.

    """
    try:
        version = json.loads(text)["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInputError(f"{path} is no record", expected="a JSON file written by rbk eval") from None
    if version == SCHEMA_VERSION:
        return text
    newer = not isinstance(version, int) or version > SCHEMA_VERSION
    raise (NewerSchemaError if newer else BadInputError)(
        f"{path} has record schema {version}",
        expected=f"schema {SCHEMA_VERSION}",
        fix="upgrade robustbench-kpca" if newer else "evaluate again",
    )
