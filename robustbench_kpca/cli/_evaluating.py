"""Shared by commands that evaluate: show progress, audits and records, and parse `--set`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console

if TYPE_CHECKING:
    from robustbench_kpca._core.progress import Screen
    from robustbench_kpca.evaluation.reporter import Reporter

_NO_OPTIONS = ("name", "checkpoint", "untrained", "ema", "resize_positions")


@contextmanager
def screen(*, quiet: bool) -> Iterator["Screen"]:
    """Show a run on the terminal."""
    from robustbench_kpca._core.progress import Screen

    note = partial(_console.note, quiet=quiet)
    with _console.progress(quiet=quiet) as start:
        yield Screen(note, note, _console.note, start)


@contextmanager
def reporting(*, quiet: bool) -> Iterator["Reporter"]:
    """Show the progress of a plan on the terminal."""
    from robustbench_kpca.evaluation.reporter import Reporter

    with screen(quiet=quiet) as shown:
        yield Reporter(shown)


def best_device() -> str:
    """Return the default device of a command: cuda if available, else cpu."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def given_options(command: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments of a command that have not their defaults."""
    return [name for name, known in signature(command).parameters.items() if arguments[name] != known.default]


def refuse_others(given: Iterable[str], what: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that would have no effect."""
    for name in given:
        if name not in (*allowed, "presets"):
            raise BadInputError(f"--{name.rstrip('_').replace('_', '-')} with {what} has no effect", fix="omit it")


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `--set` pairs: `model.iterations=6` is for the model, every other key for the protocol.

    Raises:
        BadInputError: a `model.` key that is not an option of the architecture.
    """
    model = {key.removeprefix("model."): value for key, value in settings.items() if key.startswith("model.")}
    odd = next((key for key in model if key in _NO_OPTIONS or not key.isidentifier()), None)
    if odd is not None:
        raise BadInputError(f"'model.{odd}' cannot be set", expected="an option of the architecture")
    return model, {key: value for key, value in settings.items() if not key.startswith("model.")}
