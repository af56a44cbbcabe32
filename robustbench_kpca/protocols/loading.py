"""Load protocols by name or file, set fields in them, and derive the protocols of a curve over eps.

What a short file leaves out is taken from another protocol, or is usual. Records state every field, and so does every
file of the package, so equal digests still mean equal measurements.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from robustbench_kpca._core.address import is_address, require
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.registry import did_you_mean
from robustbench_kpca._core.strict import parse_fraction
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.scenario import UNHASHED, Attack, Override, Scenario, parse_scenario

_LISTS = ("stage", "grid")
_OPTIONAL = "backward_of"
"""The field that every stage can have, and none must state."""
_OF_ATTACKS = "storage"
"""The same of attack protocols."""
USUAL: dict[str, Any] = {
    "citations": [], "policy": "stop_at_first", "labels": "true", "target": "none", "space": "pixel", "clip": True,
    "draws": 1, "precision": "fp32", "below": [],
}  # fmt: skip
"""Fields of an attack that a file may leave out; of its stages, `restarts` is 1."""
TABLES = ("stage", "grid", "inference", "imported")
"""Fields that are tables, or lists of tables."""
WHOLE = ("title", "citations", "stage")
"""Fields that a protocol which is `like` another replaces as a whole."""


def load_scenario(protocol: str | Path, overrides: dict[str, Override] | None = None) -> tuple[str, Scenario]:
    """Load a protocol and override fields; return its label and the parsed protocol.

    It is a name of the package; the path of a TOML file, which may be short (`read_protocol`); or the address of an
    attack (`my_attack.py:climb`), whose eps, norm and options are overrides, too.

    An override replaces a field of the protocol (`eps`) or of its tables: `steps` in every stage that has it,
    `backward_of` in every stage, `severities` in every part of a grid, `window` in `[inference]`. It changes the digest
    and appears in the label (`pgd20-linf-8_255+eps=3_255`).

    Raises:
        BadInputError: unknown protocol, unknown or misspelt key, invalid value.
    """
    name, data = read_protocol(protocol)
    alone = is_address(str(protocol))
    if alone and "eps" not in (overrides or {}):
        raise BadInputError(f"attack '{protocol}' without an eps", fix="add --set eps=2/255, or name a TOML file")
    for key, value in (overrides or {}).items():
        value = _plain(value)
        if alone:  # an attack without a file: what is no field of the protocol is an option of the attack
            (data if key in Attack.model_fields else data["stage"][0])[key] = value
        else:
            _override(data, key, value, name)
        text = ",".join(str(item) for item in value) if isinstance(value, list) else str(value)
        name += f"+{key}={text.replace('/', '_').replace(' ', '')}"
        data["title"] = f"{data.get('title', name)}, with {key} = {text}"
    return name, parse_scenario(data, f"protocol '{name}'")


def read_protocol(protocol: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the label of a protocol and its content with every field.

    A file may have the key `like`, the name or file of another protocol: its other keys replace fields of that one, as
    overrides do. Or it is an attack that leaves out what is usual (`USUAL`).

    Raises:
        BadInputError: unknown protocol, unreadable file, unknown key beside `like`.
    """
    if is_address(str(protocol)):
        return _of_attack(str(protocol))
    name, data = presets.load_protocol(protocol)
    if "like" not in data:
        return name, _completed(data, name)
    like = data.pop("like")
    if not isinstance(like, str):
        raise BadInputError(f"protocol {like!r}", expected="like = 'NAME', the name or file of another protocol")
    _, whole = presets.load_protocol(like)
    for key, value in data.items():
        if key in WHOLE:
            whole[key] = value
        else:
            _override(whole, key, value, name)
    return name, whole if "title" in data else whole | {"title": name}


def is_attack(protocol: str | Path) -> bool:
    """Tell whether a protocol is an attack, from its file alone: an attack without a file has no eps yet."""
    return read_protocol(protocol)[1].get("kind") == "attack"


def along_curve(eps: Iterable[str | float], *, independent: bool = False) -> list[dict[str, Override]]:
    """Return the overrides of each evaluation of a curve: ascending `eps`, with all smaller budgets in `below`.

    With `independent`, `below` stays as the protocol states it: usually empty, so that each budget is attacked alone.
    """
    budgets = sorted(eps, key=parse_fraction)
    return [
        {"eps": value} | ({"below": budgets[:at]} if at and not independent else {}) for at, value in enumerate(budgets)
    ]


def _plain(value: Any) -> Any:
    """Return the number in a tensor or array of one number."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _override(data: dict[str, Any], key: str, value: Override, name: str) -> None:
    values = [data.get(name, []) for name in _LISTS]
    tables = [table for parts in values if isinstance(parts, list) for table in parts if isinstance(table, dict)]
    tables += [data["inference"]] if isinstance(data.get("inference"), dict) else []
    fixed = {"kind", "inference", *_LISTS, *UNHASHED}
    optional = "attack" if key == _OPTIONAL else key
    targets = [table for table in tables if optional in table and key != "attack"]
    attack = data.get("kind") == "attack"
    if (key in data and key not in fixed) or (attack and key == _OF_ATTACKS):
        targets = [data]
    for table in targets:
        table[key] = value
    if not targets:
        settable = [field for field in data if field not in fixed]
        settable += [field for table in tables for field in table if field != "attack"]
        settable += [_OPTIONAL] * any("attack" in table for table in tables) + [_OF_ATTACKS] * attack
        hint = did_you_mean(key, settable) if settable else "this protocol has no field that can be set"
        raise BadInputError(f"protocol '{name}' has no field '{key}'", fix=hint)


def _of_attack(name: str) -> tuple[str, dict[str, Any]]:
    """Return the label and the content of a protocol that is an attack at an address alone; its eps is to be set."""
    require(name, "attack")
    place, _, member = name.rpartition(":")
    return f"{Path(place).stem}-{member}", _completed(
        {"kind": "attack", "norm": "linf", "stage": [{"attack": name}]}, member
    )


def _completed(data: dict[str, Any], name: str) -> dict[str, Any]:
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
