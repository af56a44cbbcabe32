"""Shared by commands that evaluate: show progress, parse `--set`, and check names.

Names are checked before torch is imported, so that an unknown one fails at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.plan import Plan
    from robustbench_kpca.evaluation.reporter import Reporter

_NO_OPTIONS = ("name", "checkpoint")


@contextmanager
def reporting(*, quiet: bool) -> Iterator["Reporter"]:
    """Show the progress of a plan on the terminal."""
    from robustbench_kpca.evaluation.reporter import Reporter

    with _console.screen(quiet=quiet) as on_screen:
        yield Reporter(on_screen)


def show_plan(plans: Iterable["Plan"], *, quiet: bool, json: bool) -> None:
    """Print the most that evaluations take, one row per model and protocol."""
    from dataclasses import asdict

    from robustbench_kpca._core.progress import spell
    from robustbench_kpca._engine.inference.work import DEVICES
    from robustbench_kpca.evaluation.execute import foretell

    with reporting(quiet=quiet or json) as reporter:
        rows = [row for plan in plans for row in foretell(plan, reporter)]
    if json:
        _console.show_json([asdict(row) for row in rows])
        return
    cells = [
        (
            row.model,
            row.protocol,
            row.samples,
            "?" if row.forwards is None else f"{row.forwards:,} + {row.backwards:,}",
            f"{row.operations / 1e9:.2g}",
            row.batch_size,
            *(spell(row.seconds.get(device)) for device in DEVICES),
        )
        for row in rows
    ]
    heads = ("Model", "Protocol", "Samples", "Forwards + backwards", "GFLOP", "Batch", *DEVICES)
    _console.show_table("", heads, cells)
    _console.note(
        "Estimates: passes of samples that withstand, times operations, by assumed rates in single precision; audits "
        "aside. To measure: the same command with --limit 64 and without --plan.",
        quiet=quiet,
    )


def usable_device(requested: str | None) -> str:
    """Return the device that was asked for, or else cuda if available, else cpu; refuse one that does not work."""
    import torch

    from robustbench_kpca._engine.inference.runner import device_for

    return str(device_for(torch.nn.Identity(), requested or ("cuda" if torch.cuda.is_available() else "cpu")))


def given_options(command: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments of a command that have not their defaults."""
    return [name for name, parameter in signature(command).parameters.items() if arguments[name] != parameter.default]


def refuse_others(names: Iterable[str], what: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that would have no effect."""
    for name in names:
        if name not in allowed:
            raise BadInputError(f"--{name.rstrip('_').replace('_', '-')} with {what} has no effect", fix="omit it")


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `--set` pairs: `model.iterations=6` is for the model, every other key for the protocol.

    Raises:
        BadInputError: a `model.` key that is not an option of the architecture.
    """
    model = {key.removeprefix("model."): value for key, value in settings.items() if key.startswith("model.")}
    unknown = next((key for key in model if key in _NO_OPTIONS or not key.isidentifier()), None)
    if unknown is not None:
        raise BadInputError(f"'model.{unknown}' cannot be set", expected="an option of the architecture")
    return model, {key: value for key, value in settings.items() if not key.startswith("model.")}


def model_settings(pairs: list[str]) -> dict[str, Any]:
    """Return the options of the architecture that `--set` pairs state, where there is no protocol to set.

    Raises:
        BadInputError: a key without `model.`, or as `split_settings`.
    """
    from robustbench_kpca._core.strict import parse_assignments

    options, rest = split_settings(parse_assignments(pairs))
    if rest:
        raise BadInputError(f"'{next(iter(rest))}' cannot be set", expected="model.KEY=VALUE")
    return options


def several(values: Iterable[str]) -> list[str]:
    """Return the names of a repeatable option, each once: `-m a -m b` is `-m a,b`. A name of a file may have commas."""
    names: dict[str, None] = {}
    for value in values:
        file = value.rpartition(":")[0] or value
        parts = [value] if "," in file and Path(file).exists() else value.split(",")
        names |= dict.fromkeys(part.strip() for part in parts)
    if "" in names:
        raise BadInputError("an empty name", expected="names with commas between them, such as a,b")
    return list(names)


def require_names(
    *,
    models: Iterable[str] = (),
    protocols: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
    data: Iterable[str | None] = (),
) -> None:
    """Refuse unknown models, protocols, fields set in these, attacks of their stages, and data."""
    from robustbench_kpca.attacks.shared.names import require_attack
    from robustbench_kpca.data.names import require_data
    from robustbench_kpca.models.names import require_model
    from robustbench_kpca.protocols.loading import load_scenario
    from robustbench_kpca.protocols.scenario import Attack

    for name in models:
        require_model(name)
    for name in protocols:
        _, scenario = load_scenario(name, dict(overrides or {}))
        for stage in scenario.stage if isinstance(scenario, Attack) else ():
            require_attack(stage.attack)
    for source in data:
        if source is not None:
            require_data(source)


def require_claims(protocol: str, claims: Iterable[str]) -> None:
    """Refuse an unknown protocol of a diagnosis, and claims that it does not measure."""
    from robustbench_kpca._core.registry import unknown_name
    from robustbench_kpca.study.diagnostics import PROCEDURES

    if protocol not in PROCEDURES:
        raise unknown_name("protocol of a diagnosis", protocol, PROCEDURES)
    for name in claims:
        PROCEDURES[protocol].require(name)
