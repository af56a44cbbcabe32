"""What every kind of protocol states, and its digest."""

import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_serializer

from robustbench_kpca._core.files import sha256
from robustbench_kpca._core.strict import STRICT

UNHASHED = {"title", "citations"}
_OPTIONAL = ("inference", "corruptions", "severities", "grid", "patch", "corners", "storage", "imported")
"""Optional fields; where they are None or empty, they are omitted from digests and records, too."""
MANY = 10**6
"""Largest count of a protocol, such as steps or restarts: with a larger one, nothing would ever finish."""
Count = Annotated[int, Field(ge=1, le=MANY, strict=True)]


class Common(BaseModel):
    """The fields of every kind: `draws` are forward passes averaged for each answer."""

    model_config = STRICT
    title: str
    citations: tuple[str, ...]
    draws: Count
    kind: str

    @property
    def table(self) -> str:
        """The table of a task that its outcomes have: that of its kind, unless a field asks for more columns."""
        return self.kind

    def digest(self) -> str:
        """SHA-256 of every field that can change a result; title and citations are excluded."""
        content = self.model_dump(mode="json", exclude=UNHASHED)
        return sha256(json.dumps(content, sort_keys=True).encode())

    @model_serializer(mode="wrap")
    def _omit_optional(self, handler: Callable[[Any], Any]) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        return {key: value for key, value in content.items() if key not in _OPTIONAL or value not in (None, [], ())}
