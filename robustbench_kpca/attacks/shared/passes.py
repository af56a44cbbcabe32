"""How many passes an attack can cost a sample, from what its class states. Does not import torch.

An attack may state `most_passes = ("steps + 1", "steps")`: forward and backward passes of a restart in which the sample
withstands, the loop's check of the last proposal included. Each is an expression in the attack's options and `classes`;
that of the forward passes may use `backwards`, too. Where it can end a restart early, `least_passes` states the fewest.
"""

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from robustbench_kpca import attacks

Formula = tuple[str, str]
Passes = tuple[int, int]


def evaluated(formula: Formula, options: Mapping[str, Any], classes: int) -> Passes:
    """Return forward and backward passes.

    Raises:
        NameError, TypeError, AttributeError: an option is missing, or of the wrong type.
    """
    names = {**options, "classes": classes}
    backwards = _value(formula[1], names)
    return _value(formula[0], names | {"backwards": backwards}), backwards


def _value(expression: str, names: dict[str, Any]) -> Any:
    return eval(expression, {"__builtins__": {"min": min, "max": max}}, names)  # noqa: S307 (of an attack's own code)


@cache
def stated(attack: str) -> tuple[Formula, Formula] | None:
    """Return the formulas of the most and the fewest passes, read from the attack's file without importing it.

    None for attacks that state none, and for all that are not of the package: their code is not read unasked.
    """
    spec = importlib.util.find_spec(f"{attacks.__name__}.{attack}") if attack.isidentifier() else None
    if spec is None or spec.origin is None:
        return None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    lines = [line for kind in tree.body if isinstance(kind, ast.ClassDef) for line in kind.body]
    fields = {ast.unparse(line.target): line.value for line in lines if isinstance(line, ast.AnnAssign) and line.value}
    if "most_passes" not in fields:
        return None
    most = ast.literal_eval(fields["most_passes"])
    return most, ast.literal_eval(fields["least_passes"]) if "least_passes" in fields else most
