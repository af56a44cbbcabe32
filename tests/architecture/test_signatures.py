"""A call can be read without its function's signature beside it."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "robustbench_kpca"
POSITIONAL = 5  # most arguments of a call without a name


def long_calls(text: str) -> list[str]:
    """Calls with more arguments without a name than may be, as `LINE: FUNCTION`; starred ones are not counted."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    counted = ((call, sum(not isinstance(each, ast.Starred) for each in call.args)) for call in calls)
    return [f"{call.lineno}: {ast.unparse(call.func)}" for call, count in counted if count > POSITIONAL]


PARAMETERS = 10  # most of a function outside `cli/`, whose commands have one for each option
MANY = {
    "_engine/attack_loop/query.py",  # all that a step of an attack may ask for
    "attention/kep_svgp.py", "attention/primal.py", "attention/shared/heads.py",  # timm passes its own to an attention
    "models/transformer.py",  # a table of architectures
}  # fmt: skip


def long_signatures(text: str) -> list[str]:
    """Functions with more parameters than may be, as `LINE: FUNCTION`; `self`, `*args` and `**kwargs` do not count."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    counted = ((each, [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]) for each in functions)
    own = ((each, [argument for argument in given if argument.arg not in ("self", "cls")]) for each, given in counted)
    return [f"{each.lineno}: {each.name}" for each, given in own if len(given) > PARAMETERS]


def test_no_function_has_more_than_ten_parameters():
    paths = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    long = {name: long_signatures(path.read_text()) for name, path in paths.items() if not name.startswith("cli/")}
    assert {name for name, functions in long.items() if functions} <= MANY


def test_no_call_passes_more_than_five_arguments_without_their_names():
    paths = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    long = {name: long_calls(path.read_text()) for name, path in paths.items()}
    assert {name: calls for name, calls in long.items() if calls} == {}
