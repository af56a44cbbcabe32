"""A call can be read without its function's signature beside it."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "robustbench_kpca"
POSITIONAL = 5  # most arguments of a call without a name
UNNAMED = {
    "attention/_fused.py",  # kernels of Triton take pointers and sizes in the order of their launch
}  # fmt: skip


def long_calls(text: str) -> list[str]:
    """Calls with more arguments without a name than may be, as `LINE: FUNCTION`; starred ones are not counted."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    counted = ((call, sum(not isinstance(each, ast.Starred) for each in call.args)) for call in calls)
    return [f"{call.lineno}: {ast.unparse(call.func)}" for call, count in counted if count > POSITIONAL]


def test_no_call_passes_more_than_five_arguments_without_their_names():
    paths = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    long = {name: long_calls(path.read_text()) for name, path in paths.items() if name not in UNNAMED}
    assert {name: calls for name, calls in long.items() if calls} == {}


def test_such_a_call_is_found():
    assert long_calls("f(1, 2, 3, 4, 5)\nf(1, 2, 3, 4, *rest, name=5)\ng.h(1, 2, 3, 4, 5, 6)") == ["3: g.h"]
