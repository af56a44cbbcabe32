"""Output of all commands: results on stdout, progress and remarks on stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class _Rate(ProgressColumn):
    """Column of the speed in images per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Show one progress bar per job, with speed and remaining time; yields `start(title) -> update(done, total)`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(24),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal, transient=True) as bars:

        def start(title: str) -> Callable[[int, int], None]:
            for task in bars.tasks:
                bars.remove_task(task.id)
            task_id = bars.add_task(title, total=None)

            def update(done: int, total: int) -> None:
                bars.update(task_id, completed=done, total=total)

            return update

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
