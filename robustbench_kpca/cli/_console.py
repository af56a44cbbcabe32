"""Output of all commands: results on stdout, progress and remarks on stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from robustbench_kpca.progress import Heartbeat, Line, Progress

if TYPE_CHECKING:
    import pandas as pd

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class _News(ProgressColumn):
    """Column of what a `Line` says, but for its title, which stands before the bar."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["line"].news)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], Progress]]:
    """Show how far each job is; yields `start(title) -> Progress`.

    A terminal shows one line with a bar. Elsewhere, as in a log, a line a minute is printed.
    """
    bars = Bars(
        TextColumn("{task.description}"), BarColumn(20), _News(),
        console=err, disable=quiet or not err.is_terminal, transient=True,
    )  # fmt: skip
    heart = Heartbeat(partial(note, quiet=quiet))

    def start(title: str) -> Progress:
        for task in bars.tasks:
            bars.remove_task(task.id)
        line = Line(title)
        shown = bars.add_task(title, total=1.0, line=line)

        def update(done: int, total: int, /, **news: Any) -> None:
            line(done, total, **news)
            if err.is_terminal:
                bars.update(shown, completed=line.share)
            else:
                heart.beat(line)

        return update

    with bars:
        yield start


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; text is never interpreted as markup."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    out.print(table)


def show_frame(title: str, frame: "pd.DataFrame") -> None:
    """Print a data frame."""
    show_table(title, [str(name) for name in frame.columns], frame.to_numpy().tolist())


def show_json(content: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(content, indent=1, default=str))


def note(text: str, *, quiet: bool = False) -> None:
    """Print a remark on stderr."""
    if not quiet:
        err.print(Text(text))
