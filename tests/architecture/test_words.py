"""Messages are in words of this package: what another library says of an error is in none of them."""

import ast
from pathlib import Path

from robustbench_kpca._core import errors

PACKAGE = Path(errors.__file__).parents[1]
OURS = {name for name in vars(errors) if name.endswith("Error")} | {"_HeldError"}
READ_ONLY = {
    "_engine/inference/runner.py": "asks whether memory ran out",
    "models/weights_file.py": "looks for the name of the class that is not unpickled",
    "evaluation/ray_cluster.py": "looks for Ray's code of the end of a worker",
    "cli/main.py": "prints errors of typer, translated by usage_error",
    "cli/_usage.py": "translates them",
    "_core/strict.py": "looks for the place where a text stops to be TOML",
}
"""Files that may look at the words of a library, and why; in their f-strings there are none either."""
WORDS = {"args", "strerror", "msg", "message", "reason", "doc"}


def caught(tree):
    """Yield (name, its part of the tree, whether the words are ours) of every caught or handed-over exception."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name:
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            yield node.name, node, {ast.unparse(kind).rpartition(".")[2] for kind in kinds} <= OURS
        if isinstance(node, ast.FunctionDef):
            for argument in node.args.args:
                kind = "" if argument.annotation is None else ast.unparse(argument.annotation)
                if kind.split(" ")[0].endswith(("Error", "Exception")) and kind not in OURS:
                    yield argument.arg, node, False


def shows(node, name):
    """Whether a shown value has anything of an error but its class, a name or number, or what `reason_of` says."""
    parts = {f"{name}.{part}" for part in ("name", "errno", "filename", "argument_name")}
    if ast.unparse(node) in parts | {f"{said}({name})" for said in ("reason_of", "type", "_why", "_place")}:
        return False
    return (isinstance(node, ast.Name) and node.id == name) or any(
        shows(child, name) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
    )


def words_of_others(tree, *, may_read=False):
    """The lines that take words from an exception that is not ours."""
    for name, part, ours in caught(tree):
        for node in () if ours else ast.walk(part):
            if isinstance(node, ast.FormattedValue) and shows(node.value, name):
                yield node.lineno, ast.unparse(node)
            if may_read or not isinstance(node, ast.Call | ast.Attribute):
                continue
            text = isinstance(node, ast.Call) and ast.unparse(node.func) in ("str", "repr")
            if text and [ast.unparse(argument) for argument in node.args] == [name]:
                yield node.lineno, ast.unparse(node)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name and node.attr in WORDS:
                yield node.lineno, ast.unparse(node)


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "errors.py"]


def test_no_message_has_words_of_a_library():
    foreign = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in FILES
        for line, text in words_of_others(
            ast.parse(path.read_text("utf-8")), may_read=str(path.relative_to(PACKAGE)) in READ_ONLY
        )
    ]
    assert not foreign, "say it by errors.reason_of:\n" + "\n".join(foreign)
