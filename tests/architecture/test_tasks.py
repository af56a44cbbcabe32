"""Only tasks, data sets and sliding windows know which kinds of data there are; everything else asks the task."""

import ast
import importlib
import pkgutil
from pathlib import Path

import robustbench_kpca.data as data_room
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.tasks import TASKS

PACKAGE = Path(__file__).parents[2] / "robustbench_kpca"
ROOMS = ("tasks", "data", "_engine/inference/sliding_window.py")
LABELLED = {"labels", "label", "logits", "targets", "masks", "predictions", "y"}


def kinds_of_data() -> set[str]:
    """Names of all classes of data sets."""
    for module in pkgutil.walk_packages(data_room.__path__, "robustbench_kpca.data."):
        importlib.import_module(module.name)
    names, waiting = set(), [Dataset]
    while waiting:
        children = waiting.pop().__subclasses__()
        names |= {child.__name__ for child in children if child.__module__.startswith("robustbench_kpca.")}
        waiting += children
    return names


def branches(source: str) -> list[str]:
    """Lines that ask which kind of data or which task is at hand."""
    kinds, names, lines = kinds_of_data(), set(TASKS.names()), source.splitlines()
    asking = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            met = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            met |= {part.attr for part in ast.walk(node.args[1]) if isinstance(part, ast.Attribute)}
            asking |= {node.lineno} if met & kinds else set()
        elif isinstance(node, ast.Compare):
            for part in (node.left, *node.comparators):
                constants = {leaf.value for leaf in ast.walk(part) if isinstance(leaf, ast.Constant)}
                asking |= {node.lineno} if constants & names else set()
                rank = isinstance(part, ast.Attribute) and part.attr == "ndim" and isinstance(part.value, ast.Name)
                asking |= {node.lineno} if rank and part.value.id in LABELLED else set()
        elif isinstance(node, ast.ImportFrom) and node.module:
            room = node.module.removeprefix("robustbench_kpca.tasks.").partition(".")[0]
            asking |= {node.lineno} if node.module.startswith("robustbench_kpca.tasks.") and room in names else set()
        elif isinstance(node, ast.match_case):
            met = {part.id for part in ast.walk(node.pattern) if isinstance(part, ast.Name)}
            asking |= {node.pattern.lineno} if met & kinds else set()
    return [lines[number - 1].strip() for number in sorted(asking)]


def test_nothing_outside_their_rooms_asks_which_task_it_is():
    asking = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith(ROOMS) and (lines := branches(path.read_text()))
    }
    assert asking == {}
