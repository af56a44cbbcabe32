"""Say how far a long piece of work is, in one line: what it does, what is done of what there is to do, the time left.

Whatever takes long calls a `Progress`. A `Line` puts what it was told into words; who shows it is up to the caller.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

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
    _first: tuple[float, int] | None = None
    _told: float = field(default=0.0)

    def __post_init__(self) -> None:
        self.begun = self._told = self.clock()

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
        """Keep the news."""
        self.done, self.total, self.passes, self.stage, self.result = done, total, passes, stage, result
        self._told, self._left = self.clock(), left
        if self._first is None:  # what a resumed run finds done took no time today
            self._first = (self.begun, 0) if done <= 1 else (self._told, done)

    @property
    def share(self) -> float:
        """How much is done, from 0 to 1: of the passes that are still possible, or of the samples."""
        done, total = self.passes or (self.done, self.total or 0)
        return min(done / total, 1.0) if total else 0.0

    @property
    def left(self) -> float | None:
        """Seconds left: as told, less what has passed since; else along a straight line; None if not yet known."""
        now = self.clock()
        if self._left is not None:
            return max(self._left - (now - self._told), 0.0)
        if self.per_second is None or self.total is None:
            return None
        return max((self.total - self.done) / self.per_second - (now - self._told), 0.0)

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
        parts = [self.stage, self.counts, self.result, "" if self.left is None else f"{spell(self.left)} left"]
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
