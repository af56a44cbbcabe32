"""What commands that evaluate share: how they show progress, audits and records, and how `--set` is read."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from robustbench_kpca.cli import _console
from robustbench_kpca.errors import BadInputError

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.plan import Plan
    from robustbench_kpca.records.audit import Audit
    from robustbench_kpca.records.record import Record

_NO_OPTIONS = ("name", "checkpoint", "untrained", "ema", "resize_positions")


class ConsoleReporter:
    """Shows on the terminal what happens while a plan is carried out."""

    def __init__(self, start: Callable[[str], Callable[[int, int], None]], *, quiet: bool) -> None:
        self.start, self.quiet = start, quiet
        self.begun = datetime.now(UTC).isoformat(timespec="seconds")

    def audited(self, audit: "Audit") -> None:
        """Print the flags of an audit."""
        say_flags(audit, quiet=self.quiet)

    def recorded(self, record: "Record") -> None:
        """Print the numbers of a record, and whether it was kept."""
        from robustbench_kpca.metrics import metric_for
        from robustbench_kpca.tasks import task_named

        names = task_named(record.spec.data.task).pages.headline(record)
        numbers = ", ".join(f"{name} {metric_for(name).unit.text(record.metrics[name].value)}" for name in names)
        how = "kept" if record.created < self.begun else f"{record.seconds:.1f} s"
        spec = record.spec
        _console.note(f"{spec.model.name}  {spec.protocol.name}  {numbers}  ({how})", quiet=self.quiet)


def carry_out(plan: "Plan", *, quiet: bool) -> list["Record"]:
    """Carry out a plan in this process, and show how it goes."""
    from robustbench_kpca.evaluation.executor import run_serially

    with _console.progress(quiet=quiet) as start:
        return run_serially(plan, ConsoleReporter(start, quiet=quiet))


def best_device() -> str:
    """Return the device of a command without `--device`: cuda where there is one, else cpu."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def say_flags(audit: "Audit", *, quiet: bool) -> None:
    """Name the flags of an audit, or say that there are none."""
    flags = ", ".join(check.name for check in audit.flags) or "no flags"
    _console.note(f"{audit.subject.model}  audit  {flags}  ({audit.seconds:.1f} s)", quiet=quiet)


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `--set` pairs: `model.iterations=6` goes to the model, everything else to the protocol."""
    model = {key.removeprefix("model."): value for key, value in settings.items() if key.startswith("model.")}
    odd = next((key for key in model if key in _NO_OPTIONS or not key.isidentifier()), None)
    if odd is not None:
        raise BadInputError(f"'model.{odd}' cannot be set", fix="options of the architecture can")
    return model, {key: value for key, value in settings.items() if not key.startswith("model.")}
