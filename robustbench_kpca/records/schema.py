"""The schema of records: which one a file has, and files of an older one as they would be written today."""

import json
from pathlib import Path
from typing import Any

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.records.schema_2 import from_schema_2

SCHEMA_VERSION = 3


class NewerSchemaError(BadInputError):
    """A record written by a later version: it is neither read nor replaced."""


class OlderSchemaError(BadInputError):
    """A record written by an earlier version; `content` is what it holds, unchecked."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        super().__init__(
            f"{path} has record schema {content['schema_version']}", expected=f"schema {SCHEMA_VERSION}",
            fix="evaluate again",
        )  # fmt: skip
        self.content = content


def current(text: bytes, path: Path) -> bytes:
    """Return a record's JSON in the current schema.

    Raises:
        NewerSchemaError: it was written by a later version.
        OlderSchemaError: it was written by a version too old to be converted.

    """
    try:
        content = json.loads(text)
        version = content["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInputError(f"{path} is no record", expected="a JSON file written by rbk eval") from None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path} has record schema {version}",
            expected=f"schema {SCHEMA_VERSION}",
            fix="upgrade robustbench-kpca",
        )
    if version == SCHEMA_VERSION:
        return text
    converted = from_schema_2(content) if version == 2 else None
    if converted is None:
        raise OlderSchemaError(path, content)
    return json.dumps(converted).encode()
