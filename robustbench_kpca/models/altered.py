"""A model with one option of its attention layers changed for a while: fewer iterations, lam = inf, other gradients."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.rpc import Pursuit
from robustbench_kpca.attention.shared.heads import MultiHeadAttention

FORM = "OPTION=VALUE, such as iterations=0, lam=inf or gradient=restored"


def parsed(setting: str) -> tuple[str, str]:
    """Return the option and the value of `OPTION=VALUE`.

    Raises:
        BadInputError: another form.
    """
    option, equals, value = (part.strip() for part in setting.partition("="))
    if not (option.isidentifier() and equals and value):
        raise BadInputError(f"'{setting}'", expected=FORM)
    return option, value


def off_switch(model: nn.Module) -> str:
    """Return the setting with which the mechanism of the model's attention is gone; empty: no layer names one."""
    return next((off for layer in model.modules() if (off := getattr(type(layer), "off", ""))), "")


@contextmanager
def altered(model: nn.Module, setting: str) -> Iterator[nn.Module]:
    """Change an option in every attention layer that has it; at the end of the context the old values are restored.

    No layer gets more `iterations` than it has.

    Raises:
        BadInputError: no layer has the option, or the value is none of it.
    """
    option, text = parsed(setting)
    layers = [layer for layer in model.modules() if _holds(layer, option)]
    if not layers:
        raise BadInputError(f"'{setting}' for a model without such an option", expected="attention layers with it")
    saved: list[tuple[Any, str, Any]] = []
    try:
        for layer in layers:
            pursuit = getattr(layer, "pursuit", None)
            owner = pursuit if isinstance(pursuit, Pursuit) and hasattr(pursuit, option) else layer
            value = _value(getattr(owner, option), text, owner, option)
            name = "pursuit" if owner is pursuit else option
            saved.append((layer, name, getattr(layer, name)))
            setattr(layer, name, replace(owner, **{option: value}) if isinstance(owner, Pursuit) else value)
        yield model
    finally:
        for layer, name, before in saved:
            setattr(layer, name, before)


def _holds(layer: nn.Module, option: str) -> bool:
    pursuit = getattr(layer, "pursuit", None)
    if isinstance(pursuit, Pursuit) and option in vars(pursuit):
        return True
    has_option = isinstance(layer, MultiHeadAttention) and option in inspect.signature(type(layer).__init__).parameters
    return has_option and isinstance(vars(layer).get(option), int | float | str)


def _value(before: Any, text: str, owner: Any, option: str) -> Any:
    """Return the value in the type of its field: `lam=1` of a layer makes 1 an int, and `lam=inf` is a float."""
    kind = inspect.signature(type(owner).__init__).parameters[option].annotation
    choices = get_args(kind) if get_origin(kind) is Literal else None
    try:
        value = (float if kind is float else type(before))(text)
    except ValueError:
        raise BadInputError(f"{option} = '{text}'", expected=f"a value like {before!r}") from None
    if isinstance(before, bool) or (choices is not None and value not in choices):
        expected = f"one of {choices}" if choices else "an option with a number"
        raise BadInputError(f"{option} = '{text}'", expected=expected)
    return min(value, before) if option == "iterations" else value
