"""Show a run to its user: audits and records in one line each, on a terminal, in a notebook or in the log."""

from functools import cached_property
from typing import TYPE_CHECKING

from robustbench_kpca._core.progress import Progress, Screen

if TYPE_CHECKING:
    from robustbench_kpca.records.record import Record


class Reporter:
    """Shows a run on a screen. A program may have a `Progress` of its own in place of the bar."""

    def __init__(self, screen: Screen, progress: Progress | None = None) -> None:
        self.screen, self.progress, self.insisted = screen, progress, set[str]()

    @cached_property
    def code(self) -> str:
        """The version of this package and its revision."""
        from robustbench_kpca._engine.inference.environment import PACKAGE, revision, version

        return _code(version(PACKAGE), revision())

    def start(self, title: str) -> Progress:
        """Begin a progress bar; return the function to call with (done, total)."""
        return self.screen.start(title) if self.progress is None else self.progress

    def announce(self, text: str) -> None:
        """Show a remark, such as what comes next and what it will cost."""
        self.screen.say(text)

    def warn(self, text: str) -> None:
        """Show what makes numbers doubtful, such as how pictures were resized."""
        self.screen.warn(text)

    def recorded(self, record: "Record") -> None:
        """Show the metrics of a record, its running time ("kept" if it existed before), and its flags.

        Say of a kept record if other code made it, because nobody knows here whether this code gives other numbers.
        """
        from robustbench_kpca.metrics import metric_for
        from robustbench_kpca.tasks import task_named
        from robustbench_kpca.tasks.caveats import agreement_of_record, in_short

        names = task_named(record.spec.data.task).pages.headline(record)
        numbers = ", ".join(f"{name} {metric_for(name).unit.text(record.metrics[name].value)}" for name in names)
        how, spec = f"{record.seconds:.1f} s" if record.path is None else "kept", record.spec
        self.screen.say(f"{spec.model.name}  {spec.protocol.name}  {numbers}  ({how})")
        if how == "kept" and (then := _code_of(record)) != self.code:
            self.screen.say(f"  made by {then}, this is {self.code}; --fresh makes it again")
        for flag in record.flags:
            self.screen.warn(f"{spec.model.name}, {spec.protocol.name}: {flag}")
        agreement = agreement_of_record(record)
        line = "" if agreement is None else f"  {spec.protocol.name} {in_short(agreement)}"
        if line and line not in self.insisted:  # numbers are read with it
            self.insisted.add(line)
            self.screen.insist(line)


def _code_of(record: "Record") -> str:
    from robustbench_kpca._engine.inference.environment import PACKAGE

    return _code(record.environment.packages.get(PACKAGE, "unknown"), record.environment.revision)


def _code(version: str, revision: str | None) -> str:
    """Name a version, with the commit of a checkout and `+` for changes that are not committed."""
    if revision is None:
        return f"version {version}"
    return f"version {version}, revision {revision[:8]}{'+' if revision.endswith('+') else ''}"
