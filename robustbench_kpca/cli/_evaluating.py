"""Shared by commands that evaluate: show progress, audits and records, and parse `--set`."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

from robustbench_kpca.cli import _console
from robustbench_kpca.errors import BadInputError

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.plan import Plan
    from robustbench_kpca.progress import Progress
    from robustbench_kpca.records.audit import Audit
    from robustbench_kpca.records.record import Record

_NO_OPTIONS = ("name", "checkpoint", "untrained", "ema", "resize_positions")


class ConsoleReporter:
    """Shows the progress of a plan on the terminal."""

    def __init__(self, start: "Callable[[str], Progress]", *, quiet: bool) -> None:
        self.start, self.quiet = start, quiet
        self.begun = datetime.now(UTC).isoformat(timespec="seconds")

    @cached_property
    def code(self) -> str:
        """The version of this package and its revision."""
        from robustbench_kpca.inference.environment import PACKAGE, revision, version

        return _code(version(PACKAGE), revision())

    def announce(self, text: str) -> None:
        """Print a remark."""
        _console.note(text, quiet=self.quiet)

    def audited(self, audit: "Audit", *, kept: bool) -> None:
        """Print the flags of an audit, and its running time, or "kept" if it existed before."""
        say_flags(audit, quiet=self.quiet, kept=kept)

    def recorded(self, record: "Record") -> None:
        """Print the metrics of a record, its running time ("kept" if it existed before), and its flags.

        Of a kept record, say if it was made by other code: nobody knows here whether that would give other numbers.
        """
        from robustbench_kpca.metrics import metric_for
        from robustbench_kpca.report.agreement import agreement_of_record, in_short
        from robustbench_kpca.report.distances import floor
        from robustbench_kpca.tasks import task_named

        names = task_named(record.spec.data.task).pages.headline(record)
        numbers = ", ".join(f"{name} {metric_for(name).unit.text(record.metrics[name].value)}" for name in names)
        how = "kept" if record.created < self.begun else f"{record.seconds:.1f} s"
        spec = record.spec
        _console.note(f"{spec.model.name}  {spec.protocol.name}  {numbers}  ({how})", quiet=self.quiet)
        if how == "kept" and (then := _code_of(record)) != self.code:
            _console.note(f"  made by {then}, this is {self.code}; --fresh makes it again", quiet=self.quiet)
        for flag in record.flags:
            _console.note(f"  {flag}", quiet=self.quiet)
        agreement = agreement_of_record(record)
        for text in ("" if agreement is None else in_short(agreement), floor(record)):
            if text:  # said even if quiet: the numbers are not to be read without it
                _console.note(f"  {spec.protocol.name} {text}", quiet=False)


def carry_out(plan: "Plan", *, quiet: bool) -> list["Record"]:
    """Execute a plan, by itself or in several processes as its options say, and show its progress."""
    from robustbench_kpca.evaluation.executor import executor_for

    with _console.progress(quiet=quiet) as start:
        return executor_for(plan.options)(plan, ConsoleReporter(start, quiet=quiet))


def best_device() -> str:
    """Return the default device of a command: cuda if available, else cpu."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def say_flags(audit: "Audit", *, quiet: bool, kept: bool = False) -> None:
    """Print the flags of an audit, the ball of its attacks, and its running time."""
    from robustbench_kpca.protocols.threat import Threat
    from robustbench_kpca.records.audit_versions import summary

    how = "kept" if kept else f"{audit.seconds:.1f} s"
    ball = Threat(audit.plan.norm, audit.plan.eps)
    _console.note(f"{audit.subject.model}  {audit.plan.level} audit  {ball}  {summary(audit)}  ({how})", quiet=quiet)


def _code_of(record: "Record") -> str:
    from robustbench_kpca.inference.environment import PACKAGE

    return _code(record.environment.packages.get(PACKAGE, "unknown"), record.environment.revision)


def _code(version: str, revision: str | None) -> str:
    """Name a version, with the commit of a checkout and `+` for changes that are not committed."""
    if revision is None:
        return f"version {version}"
    return f"version {version}, revision {revision[:8]}{'+' if revision.endswith('+') else ''}"


def given_options(command: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments of a command that have not their defaults."""
    return [name for name, known in signature(command).parameters.items() if arguments[name] != known.default]


def refuse_others(given: Iterable[str], what: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that would have no effect.

    Raises:
        BadInputError: one of `given` is not allowed.

    """
    for name in given:
        if name not in (*allowed, "model", "presets"):
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
