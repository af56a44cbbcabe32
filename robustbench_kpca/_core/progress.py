"""Say how far a long piece of work is, in one line: what it does, what is done of what there is to do, the time left.

Whatever takes long calls a `Progress`. A `Line` puts what it was told into words, and `bars` shows it. A command and a
Python program show the same, each on its `Screen`.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from robustbench_kpca._core.errors import printable

_LOG = logging.getLogger("robustbench_kpca")

HEARTBEAT = 60.0  # seconds between two lines where no terminal shows a bar


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


def spell(seconds: float | None) -> str:
    """Write a duration: `40 s`, `12 min`, `3.5 h`, `6 d`; `?` where it is not known."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"


@dataclass
class Line:
    """A `Progress` that keeps the last news and writes it as one line.

    Attributes:
        title: what the work is.
        clock: seconds, such as `time.monotonic`.
    """

    title: str
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    total: int | None = None
    passes: tuple[int, int] | None = None
    stage: str = ""
    result: str = ""
    _left: float | None = None
    _first: tuple[float, int, int] | None = None  # time, samples and passes at the first news
    _told: float = field(default=0.0)

    def __post_init__(self) -> None:
        self.begun = self._told = self.clock()

    def __call__(self, done: int, total: int, /, **news: Any) -> None:
        """Keep the news, see `Progress`."""
        self.done, self.total, self.passes = done, total, news.get("passes")
        self.stage, self.result = news.get("stage", ""), news.get("result", "")
        self._told, self._left = self.clock(), news.get("left")
        if self._first is None:  # what a resumed run finds done took no time today
            passes = self.passes[0] if self.passes else 0
            self._first = (self.begun, 0, 0) if done <= 1 else (self._told, done, passes)

    @property
    def share(self) -> float:
        """How much is done, from 0 to 1: of the passes that are still possible, or of the samples."""
        done, total = self.passes or (self.done, self.total or 0)
        return min(done / total, 1.0) if total else 0.0

    @property
    def left(self) -> float | None:
        """Seconds left; None if not yet known.

        What is left × the seconds that a pass, or a sample, took since the first news. Passes that are still possible
        are the most that can be left.
        """
        now = self.clock()
        if self._left is not None:
            return max(self._left - (now - self._told), 0.0)
        if self._first is None or self._told <= self._first[0] or self.total is None:
            return None
        done, total = self.passes or (self.done, self.total)
        made = done - self._first[2 if self.passes else 1]
        return (
            max((total - done) * (self._told - self._first[0]) / made - (now - self._told), 0.0) if made > 0 else None
        )

    @property
    def per_second(self) -> float | None:
        """Samples or steps a second since the first news; None if that is not yet known."""
        if self._first is None or self.done <= self._first[1] or self._told <= self._first[0]:
            return None
        return (self.done - self._first[1]) / (self._told - self._first[0])

    def __str__(self) -> str:
        return f"{self.title}  {self.news}".rstrip()

    @property
    def news(self) -> str:
        """The line without its title."""
        most = "at most " if self.passes and self._left is None else ""
        parts = [self.stage, self.counts, self.result, "" if self.left is None else f"{most}{spell(self.left)} left"]
        return "  ".join(part for part in parts if part)

    @property
    def counts(self) -> str:
        """What is done, in numbers."""
        if self.total is None:
            return ""
        if self.passes is None:
            return f"{self.done:,}/{self.total:,}"
        done, most = self.passes
        return f"{self.done:,}/{self.total:,}, {done:,} of at most {most:,} passes"


@dataclass
class Heartbeat:
    """Prints a line a minute, for logs; the first one after a minute, so that short work prints none.

    It prints when there is news, which is at least after every batch: no thread runs beside the work.
    """

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    every: float = HEARTBEAT

    def __post_init__(self) -> None:
        self.last = self.clock()

    def beat(self, line: Line) -> None:
        """Print the line if it is time."""
        if self.clock() - self.last >= self.every:
            self.last = self.clock()
            self.say(str(line))


class _News(ProgressColumn):
    """Column of what a `Line` says, but for its title, which stands before the bar."""

    def render(self, task: Task) -> Text:
        return Text(printable(task.fields["line"].news))


@contextmanager
def bars(console: Console, say: Callable[[str], None], *, quiet: bool) -> Iterator[Callable[[str], Progress]]:
    """Show how far each job is; yields `start(title) -> Progress`.

    A terminal or notebook shows one line with a bar. Elsewhere, as in a log, there is a line a minute.
    """
    live = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    shown = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        _News(),
        console=console,
        disable=quiet or not live,
        transient=True,
    )
    heart = Heartbeat(say)

    def start(title: str) -> Progress:
        for task in shown.tasks:
            shown.remove_task(task.id)
        line = Line(title)
        bar = shown.add_task(printable(title), total=1.0, line=line)

        def update(done: int, total: int, /, **news: Any) -> None:
            line(done, total, **news)
            if live:
                shown.update(bar, completed=line.share)
            else:
                heart.beat(line)

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
