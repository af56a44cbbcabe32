"""Keywords of a function that are fields of a dataclass: stated there once, with their defaults."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def split(kind: type[T], settings: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """Return the dataclass that keywords fill, and the other keywords."""
    names = {field.name for field in fields(kind)} & set(settings)  # type: ignore[arg-type] # a dataclass
    rest = {name: value for name, value in settings.items() if name not in names}
    return kind(**{name: settings[name] for name in names}), rest


def takes(*kinds: type) -> Callable[[F], F]:
    """Show fields of dataclasses in a function's signature, for help and completion, before its `**settings`."""

    def with_fields(function: F) -> F:
        signature = inspect.signature(function)
        *parameters, rest = signature.parameters.values()
        more = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for kind in kinds
            for field in fields(kind)
        ]
        function.__signature__ = signature.replace(parameters=[*parameters, *more, rest])  # type: ignore[attr-defined]
        return function

    return with_fields
