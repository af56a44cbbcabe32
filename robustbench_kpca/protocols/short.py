"""Protocols of few lines: what a file leaves out is taken from another protocol, or is usual.

Records state every field, and so does every file of the package, so equal digests still mean equal measurements.
"""

import json
from pathlib import Path
from typing import Any

from robustbench_kpca._core import address

USUAL: dict[str, Any] = {
    "citations": [], "policy": "stop_at_first", "labels": "true", "target": "none", "space": "pixel", "clip": True,
    "draws": 1, "precision": "fp32", "below": [],
}  # fmt: skip
"""Fields of an attack that a file may leave out; of its stages, `restarts` is 1."""
TABLES = ("stage", "grid", "inference", "imported")
"""Fields that are tables, or lists of tables."""
WHOLE = ("title", "citations", "stage")
"""Fields that a protocol which is `like` another replaces as a whole."""


def of_attack(name: str) -> tuple[str, dict[str, Any]]:
    """Return the label and the content of a protocol that is an attack at an address alone; its eps is to be set."""
    address.require(name, "attack")
    place, _, member = name.rpartition(":")
    return f"{Path(place).stem}-{member}", completed(
        {"kind": "attack", "norm": "linf", "stage": [{"attack": name}]}, member
    )


def completed(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the content of a file with the usual values of what it leaves out, where it is an attack."""
    if data.get("kind") != "attack" or not isinstance(data.get("stage"), list):
        return data
    stages = [{"restarts": 1} | stage if isinstance(stage, dict) else stage for stage in data["stage"]]
    return {"title": name} | USUAL | data | {"stage": stages}


def as_toml(data: dict[str, Any]) -> str:
    """Write the content of a protocol as a file: its fields, then its tables."""
    tables = {key: value for key, value in data.items() if key in TABLES and value}
    lines = [f"{key} = {_written(value)}" for key, value in data.items() if key not in tables]
    for key, value in tables.items():
        head = f"[[{key}]]" if isinstance(value, list) else f"[{key}]"
        for table in value if isinstance(value, list) else [value]:
            lines += ["", head, *(f"{name} = {_written(option)}" for name, option in table.items())]
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
