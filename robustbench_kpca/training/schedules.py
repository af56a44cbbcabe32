"""The recipes of the package: a file of `recipes/` is a schedule, and each of its arms makes it a recipe; no torch."""

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca._core.strict import load_toml


@cache
def recipes() -> Mapping[str, Mapping[str, Any]]:
    """Return name -> content of every recipe that comes with the package.

    A schedule holds the keys that all its arms share. The table `arms.NAME` holds what the recipe NAME adds or changes.
    """
    content: dict[str, Mapping[str, Any]] = {}
    for path in sorted(Path(__file__).parent.glob("recipes/*.toml")):
        schedule = load_toml(path)
        arms = schedule.pop("arms")
        content |= {name: arm | schedule | arm for name, arm in arms.items()}  # title and model are written first
    return content


def read_recipe(name: str) -> tuple[dict[str, Any], str]:
    """Return the content of a recipe, given its name or a TOML file, and its text in TOML, which weights keep.

    Raises:
        UnknownNameError: no such recipe.
        BadInputError: the file is missing, unreadable or not valid TOML.
    """
    if name in recipes():
        return deepcopy(dict(recipes()[name])), _to_toml(recipes()[name])
    if not name.endswith(".toml"):
        raise unknown_name("recipe", name, recipes(), "give a .toml file")
    return load_toml(Path(name)), Path(name).read_text("utf-8")


def _to_toml(table: Mapping[str, Any], name: str = "") -> str:
    """Write values first, then tables under their names; `model_options` is a value."""
    tables = {key for key, value in table.items() if isinstance(value, dict) and key != "model_options"}
    text = "".join(f"{key} = {_spelt(value)}\n" for key, value in table.items() if key not in tables)
    for key in (key for key in table if key in tables):
        text += f"\n[{name}{key}]\n{_to_toml(table[key], f'{name}{key}.')}"
    return text


def _spelt(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_spelt(item)}' for key, item in value.items())} }}" if value else "{}"
    if isinstance(value, float) and 0 < value < 0.01:  # 2e-3, as the schedules have it
        mantissa, exponent = f"{value:.14e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return json.dumps(value, ensure_ascii=False)
