"""Give a command the options of a run: they are the fields of `RunOptions`, with their help and their ranges."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from robustbench_kpca.evaluation.options import DEFAULTS, OPTIONS, TYPES, run_options

F = TypeVar("F", bound=Callable[..., int | None])


def with_run_options(*names: str, **defaults: Any) -> Callable[[F], F]:
    """Return a decorator: a command that takes `options` gets these fields as options of its own.

    Args:
        names: of the fields; none: all.
        defaults: those that differ from the fields' own.
    """
    fields = [name for name in OPTIONS if not names or name in names]

    def add(command: F) -> F:
        shown = inspect.signature(command)
        own = [parameter for parameter in shown.parameters.values() if parameter.name != "options"]
        every = [*own, *(_parameter(name, defaults.get(name, DEFAULTS[name])) for name in fields)]

        @functools.wraps(command)
        def run(**given: Any) -> int | None:
            chosen = {name: given.pop(name) for name in fields}
            return command(**given, options=run_options(chosen)[0])

        run.__signature__ = shown.replace(parameters=every)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        del run.__wrapped__  # typer reads the signature of what is wrapped
        return run  # type: ignore[return-value]

    return add


def _parameter(name: str, default: Any) -> inspect.Parameter:
    """Return a field as a parameter of a command."""
    known = OPTIONS[name]
    kind = list[str] if isinstance(default, tuple) else TYPES[name]
    shown = typer.Option(*known.flags, help=known.help, show_default=default is not None)
    default = list(default) if isinstance(default, tuple) else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])
