"""Load protocols by name or file, set fields in them, and derive the protocols of a curve over eps."""

from collections.abc import Iterable
from typing import Any

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.scenario import UNHASHED, Clean, Corruption, Override, Scenario, parse_scenario
from robustbench_kpca.protocols.threat import parse_fraction
from robustbench_kpca.strict import did_you_mean

_TABLES = ("stage", "grid")


def load_scenario(protocol: str, overrides: dict[str, Override] | None = None) -> tuple[str, Scenario]:
    """Resolve a protocol's name or TOML path, with fields overridden; return its label and the scenario.

    An override names a field of the protocol (`eps`) or of its tables (`steps`, set in every stage that has it;
    `severities`, in every part of a grid; `window`, in `[inference]`), and shows in the label
    (`pgd20-linf-8_255+eps=3_255`) as it does in the digest.

    Raises:
        BadInputError: unknown protocol, unknown or misspelt key, unusable value.

    """
    name, data = presets.load_protocol(protocol)
    for key, value in (overrides or {}).items():
        _override(data, key, value, name)
        shown = ",".join(str(item) for item in value) if isinstance(value, list) else str(value)
        name += f"+{key}={shown.replace('/', '_').replace(' ', '')}"
        data["title"] = f"{data.get('title', name)}, with {key} = {shown}"
    return name, parse_scenario(data, f"protocol '{name}'")


def to_draw(label: str, scenario: Scenario, cell: tuple[str, int] | None) -> Scenario:
    """Return what a protocol shows of the images as they are and, where one is given, in one cell alone.

    Raises:
        BadInputError: an attack, shift or OOD protocol; a cell, and the protocol corrupts nothing.

    """
    if not isinstance(scenario, Clean | Corruption):
        raise BadInputError(
            f"protocol '{label}' ({scenario.kind})", expected="a protocol of kind clean or corruption",
            fix="choose 'segmentation', say",
        )  # fmt: skip
    fields = scenario.model_dump(mode="json")
    if cell is None:
        return Clean(**{key: fields[key] for key in Clean.model_fields if key in fields} | {"kind": "clean"})
    made = {"profile": "imagecorruptions", "mode": "fast", "storage": "none", "frost": "generated", "clean": True}
    made |= {"reference": "none"} | fields
    made |= {"kind": "corruption", "clean": True, "grid": [{"corruptions": [cell[0]], "severities": [cell[1]]}]}
    made = {key: value for key, value in made.items() if key not in ("corruptions", "severities")}
    return parse_scenario(made, f"protocol '{label}'")


def along_curve(eps: Iterable[str | float]) -> list[dict[str, Override]]:
    """Return the overrides of each evaluation along a curve: budgets ascending, each naming the smaller ones."""
    budgets = sorted(eps, key=parse_fraction)
    return [{"eps": value} | ({"below": budgets[:at]} if at else {}) for at, value in enumerate(budgets)]


def _override(data: dict[str, Any], key: str, value: Override, name: str) -> None:
    found = [data.get(name, []) for name in _TABLES]
    tables = [table for parts in found if isinstance(parts, list) for table in parts if isinstance(table, dict)]
    tables += [data["inference"]] if isinstance(data.get("inference"), dict) else []
    fixed = {"kind", "inference", *_TABLES, *UNHASHED}
    having = [table for table in tables if key in table and key != "attack"]
    if key in data and key not in fixed:
        having = [data]
    for table in having:
        table[key] = value
    if not having:
        known = [field for field in data if field not in fixed]
        known += [field for table in tables for field in table if field != "attack"]
        hint = did_you_mean(key, known) if known else "nothing in it can be set"
        raise BadInputError(f"protocol '{name}' has no field '{key}'", fix=hint)
