"""Errors of the command line in words of this package: what was met, what is expected, and which help to ask for."""

import inspect
import re
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from robustbench_kpca._core.errors import BadInputError, shortened
from robustbench_kpca._core.registry import advice, did_you_mean

_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}
_EXTRA = re.compile(r"extra argument\S* \((.*)\)", re.DOTALL)


def usage_error(error: Any, command: str) -> BadInputError:
    """Translate a usage error of typer, or of click, on which it stands; `command` is the first word that was typed."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "rbk" if command.startswith("-") else f"rbk {command}"
    problem, expected, hint = _explained(error, path, context)
    return BadInputError(problem, expected=expected, fix=advice(hint, f"see: {path} --help"))


def _explained(error: Any, path: str, context: Any) -> tuple[str, str, str]:
    """Return the problem, what is expected, and what may be meant."""
    kind, message, param = type(error).__name__, str(error.message), getattr(error, "param", None)
    if kind == "NoSuchOption":
        option = error.option_name
        if option in _options_of(context.find_root().command):
            meant = f"{option} stands before the command: rbk {option} … {path.partition(' ')[2]}"
        else:
            meant = _meant(option, _options_of(context.command))
        return f"{path} has no option '{option}'", "", meant
    if kind == "MissingParameter" and param is not None:
        return f"{path} needs {_named(param)}", "", ""
    if param is not None:
        value = _value(error)
        problem = _named(param) if value is None else f"{_named(param)} = '{shortened(value, 80)}'"
        return problem, _expected(context, param), ""
    if kind == "BadOptionUsage":
        return f"{error.option_name} {'takes no' if 'not take' in message else 'needs a'} value", "", ""
    if extra := _EXTRA.search(message):
        return f"{path} takes no argument '{shortened(extra[1], 80)}'", "", ""
    if commands := getattr(getattr(context, "command", None), "commands", None):
        typed = re.search("'(.*?)'", message, re.DOTALL)
        problem = f"there is no command '{path} {shortened(typed[1], 80)}'" if typed else f"{path} needs a command"
        return problem, "", did_you_mean(typed[1] if typed else "", commands)
    return f"the options of {path} cannot be read", "", ""


def _options_of(command: Any) -> list[str]:
    return [name for option in command.params for name in option.opts if name.startswith("--")]


def _meant(option: str, names: list[str]) -> str:
    """Say how a field of a protocol is set, or else which option may be meant."""
    from robustbench_kpca.protocols.presets import has_field

    field = option.lstrip("-").replace("-", "_")
    if {"--protocol", "--set"} <= set(names) and has_field(field):
        return f"'{field}' is a field of the protocol: --set {field}=…"
    return did_you_mean(option, names)


def _named(param: Any) -> str:
    """Return the long name of an option, or an argument as the help writes it."""
    options = [name for name in param.opts if name.startswith("-")]
    return str(max(options, key=len) if options else param.metavar or param.name.upper())


def _value(error: Any) -> str | None:
    if hasattr(error.__cause__, "errors"):  # of pydantic
        return str(error.__cause__.errors()[0]["input"])
    quoted = re.match(r"'(.*)' is not", error.message, re.DOTALL) or re.match(
        r"(\S+) is not in the range", error.message
    )
    return quoted[1] if quoted else None


def _expected(context: Any, param: Any) -> str:
    """Say what an option takes, from the annotation of the command's function."""
    annotation = inspect.signature(inspect.unwrap(context.command.callback)).parameters[param.name].annotation
    base, about = get_args(annotation)[:2]
    if choices := next((get_args(part) for part in (base, *get_args(base)) if get_origin(part) is Literal), ()):
        return f"one of {', '.join(choices)}"
    kind = next(part for part in (*get_args(base), base) if part is not NoneType)
    least, most = about.min, about.max
    bounds = f" from {least:g} to {most:g}" if least is not None and most is not None else ""
    bounds = bounds or ("" if least is None else f" of at least {least:g}") + (
        "" if most is None else f" of at most {most:g}"
    )
    return f"{_KINDS.get(kind, 'another value')}{bounds}"
