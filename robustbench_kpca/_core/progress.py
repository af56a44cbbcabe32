"""How long work takes: what is left × the seconds of each, as measured on what is done; one line that rich draws.

Whatever takes long calls a `Progress`. A `Line` measures, and puts what it was told into words; `bars` shows it. A
command and a Python program show the same, each on its `Screen`. What a training took is kept beside its weights
(`Spent`), so the time of another one is known before it begins.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from robustbench_kpca._core.errors import BadInputError, printable
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.strict import STRICT, validate_json

_LOG = logging.getLogger("robustbench_kpca")

HEARTBEAT = 60.0  # seconds between two lines where no terminal shows a bar


def time_left(remaining: float, done: float, seconds: float) -> float | None:
    """Return `remaining` × the seconds of each, where `done` took so many `seconds`; None if nothing was measured."""
    return remaining * seconds / done if done > 0 and seconds > 0 else None


def spell(seconds: float | None) -> str:
    """Write a duration: `40 s`, `12 min`, `3.5 h`, `6 d`; `?` where it is not known."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"


class Every:
    """Tells whether so many seconds have passed since it last was time; with `at_once` it is time at first."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, *, at_once: bool = False) -> None:
        self.seconds, self.clock = seconds, clock
        self._last = clock() - (seconds if at_once else 0)

    def due(self) -> bool:
        """Tell whether it is time; if so, it is not for so many seconds."""
        now = self.clock()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True


@runtime_checkable
class Progress(Protocol):
    """Called with what is done and what there is to do, in samples or steps."""

    def __call__(
        self,
        done: int,
        total: int,
        /,
        *,
        passes: tuple[int, int] | None = None,
        stage: str = "",
        result: str = "",
        left: float | None = None,
    ) -> None:
        """Take the news.

        Args:
            done: samples or steps that are finished.
            total: all of them.
            passes: passes of the model done, and the most that are still possible in all.
            stage: what is done now.
            result: what was found so far.
            left: seconds left, where the caller knows better than a straight line.
        """
        ...


class Line:
    """A `Progress` that keeps the last news, measures how long it took, and writes it as one line.

    Args:
        title: what the work is.
        clock: seconds, such as `time.monotonic`.
    """

    def __init__(self, title: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.title, self.clock = title, clock
        self.done, self.total = 0, 0  # no total before the first news
        self.passes: tuple[int, int] | None = None
        self.stage = self.result = ""
        self._given_left: float | None = None
        self._told = self._since = clock()
        self._before = (0, 0)  # samples and passes that were done at `_since`

    def __call__(self, done: int, total: int, /, **news: Any) -> None:
        """Keep the news, see `Progress`."""
        self._told, passes = self.clock(), news.get("passes")
        if not self.total and done > 1:  # what a resumed run finds done took no time today
            self._since, self._before = self._told, (done, passes[0] if passes else 0)
        self.done, self.total, self.passes = done, total, passes
        self.stage, self.result, self._given_left = news.get("stage", ""), news.get("result", ""), news.get("left")

    @property
    def share(self) -> float:
        """How much is done, from 0 to 1: of the passes that are still possible, or of the samples."""
        done, total = self.passes or (self.done, self.total)
        return min(done / total, 1.0) if total else 0.0

    @property
    def left(self) -> float | None:
        """Seconds left; None if not yet known. Passes that are still possible are the most that can be left."""
        left = self._given_left
        if left is None:
            done, total = self.passes or (self.done, self.total)
            before = self._before[1 if self.passes else 0]
            left = time_left(total - done, done - before, self._told - self._since)
        return None if left is None else max(left - (self.clock() - self._told), 0.0)

    @property
    def per_second(self) -> float | None:
        """Samples or steps a second since the first news; None if that is not yet known."""
        each = time_left(1, self.done - self._before[0], self._told - self._since)
        return None if each is None else 1 / each

    def __str__(self) -> str:
        return f"{self.title}  {self.news}".rstrip()

    @property
    def news(self) -> str:
        """The line without its title."""
        most = "at most " if self.passes and self._given_left is None else ""
        parts = [self.stage, self.counts, self.result, "" if self.left is None else f"{most}{spell(self.left)} left"]
        return "  ".join(part for part in parts if part)

    @property
    def counts(self) -> str:
        """What is done, in numbers."""
        passes = "" if self.passes is None else ", {:,} of at most {:,} passes".format(*self.passes)
        return f"{self.done:,}/{self.total:,}{passes}" if self.total else ""


class Spent(BaseModel):
    """Seconds on the clock and of the processor, of so many epochs that were finished, and of those that were lost.

    `device` and `processor` name where it was; they are empty where that is not known, or where it was several.
    """

    model_config = STRICT
    epochs: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    device: str = ""
    processor: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Device and processor, as `environment.place` names them."""
        return self.device, self.processor


def spent_file(weights: Path) -> Path:
    """Return where the time of a training is written."""
    return weights.with_name(f"{weights.name.removesuffix('.safetensors')}.spent.json")


def read_spent(weights: Path) -> Spent | None:
    """Return the time that a training took; None where it is not written."""
    path = spent_file(weights)
    try:
        return validate_json(Spent, path.read_bytes(), str(path)) if path.is_file() else None
    except BadInputError:
        return None


@contextmanager
def timed(weights: Path, place: tuple[str, str], *, write: bool, share: float = 1.0) -> Iterator[None]:
    """Add the time of one epoch at a place (`Spent.place`), if `write`; of one that is cut short, its time alone.

    `share`: of the time, where several trainings ran at once.
    """
    started, cpu, finished = time.perf_counter(), time.process_time(), 0
    try:
        yield
        finished = 1
    except BadInputError:
        write = False  # the training was refused
        raise
    finally:
        before = read_spent(weights) or Spent(device=place[0], processor=place[1])
        device, processor = place if before.place == place else ("", "")
        after = Spent(
            epochs=before.epochs + finished,
            seconds=round(before.seconds + share * (time.perf_counter() - started), 3),
            cpu_seconds=round(before.cpu_seconds + share * (time.process_time() - cpu), 3),
            device=device,
            processor=processor,
        )
        if write:
            write_atomic(spent_file(weights), after.model_dump_json().encode())


class _News(ProgressColumn):
    """Column of what a `Line` says, but for its title, which stands before the bar."""

    def render(self, task: Task) -> Text:
        return Text(printable(task.fields["line"].news))


@contextmanager
def bars(console: Console, say: Callable[[str], None], *, quiet: bool) -> Iterator[Callable[[str], Progress]]:
    """Show how far each job is; yields `start(title) -> Progress`.

    A terminal or notebook shows one line with a bar. Elsewhere, as in a log, there is a line a minute while
    there is news, the first one after a minute, so that short work has none. No thread runs beside the work.
    """
    live = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), _News())
    shown = Bars(*columns, console=console, disable=quiet or not live, transient=True)
    heartbeat = Every(HEARTBEAT)

    def start(title: str) -> Progress:
        for task in shown.tasks:
            shown.remove_task(task.id)
        line = Line(title)
        bar = shown.add_task(printable(title), total=1.0, line=line)

        def update(done: int, total: int, /, **news: Any) -> None:
            line(done, total, **news)
            if live:
                shown.update(bar, completed=line.share)
            elif heartbeat.due():
                say(str(line))

        return update

    with shown:
        yield start


@dataclass(frozen=True)
class Screen:
    """What shows a run to its user.

    Attributes:
        say: shows a remark.
        warn: shows what makes a number doubtful.
        insist: shows what must be read with a number, also where the user asked for quiet.
        start: begins a bar with a title.
    """

    say: Callable[[str], None]
    warn: Callable[[str], None]
    insist: Callable[[str], None]
    start: Callable[[str], Progress]


@contextmanager
def python_screen(*, quiet: bool) -> Iterator[Screen]:
    """Show a Python program what a command shows: on a terminal or in a notebook, else in the log of this package.

    With `quiet` only warnings are logged.
    """
    console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)

    def show(text: str) -> None:
        console.print(Text(printable(text)))

    seen = (console.is_terminal or console.is_jupyter) and not quiet
    say, warn = (show, show) if seen else (_nothing if quiet else _LOG.info, _LOG.warning)
    with bars(console, say, quiet=quiet) as start:
        yield Screen(say, warn, warn, start)


def _nothing(text: str) -> None:
    """Show nothing."""
