"""Output of all commands: results on stdout, progress and remarks on stderr. Help does not import rich."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from textwrap import indent
from typing import TYPE_CHECKING, Any

from robustbench_kpca._core.errors import printable, printable_lines

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from robustbench_kpca._core.progress import Screen


@cache
def out() -> "Console":
    """Return the console of results."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)


@cache
def err() -> "Console":
    """Return the console of progress and remarks."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def screen(*, quiet: bool) -> Iterator["Screen"]:
    """Show a run on stderr: its remarks, and how far each job is."""
    from robustbench_kpca._core.progress import Screen, bars

    say = partial(note, quiet=quiet)
    with bars(err(), say, quiet=quiet) as start:
        yield Screen(say, say, note, start)


def say(text: str) -> None:
    """Print lines of text as they are, but without control characters."""
    out().print(printable_lines(text), markup=False)


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; text is never interpreted as markup, and holds no control characters.

    A terminal folds what is too wide; elsewhere each row is one line.
    """
    title, header = printable(title), [printable(name) for name in header]
    lines = [[printable(str(cell)) for cell in row] for row in rows]
    if not out().is_terminal:
        _show_lines(title, header, lines)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for name in header:
        table.add_column(Text(name), overflow="fold")
    for row in lines:
        table.add_row(*map(Text, row))
    out().print(table)


def _show_lines(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.cells import cell_len

    whole = [list(header), *rows]
    widths = [max(map(cell_len, column)) for column in zip(*whole, strict=True)]
    lines = [title] if title else []
    for row in whole:
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    out().file.write("\n".join(lines) + "\n")


def count(number: int, what: str) -> str:
    """Write a number of things whose plural ends in s: `1 record`, `2 records`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def show_frame(title: str, frame: "pd.DataFrame") -> None:
    """Print a data frame."""
    show_table(title, [str(name) for name in frame.columns], frame.to_numpy().tolist())


def show_json(content: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(content, indent=1, default=str))


def show_json_list(items: Iterable[Any]) -> None:
    """Print one JSON list, with one item in memory at a time; where an item raises, print nothing."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as text:
        for place, item in enumerate(items):
            lines = json.dumps(item, indent=1, default=str)
            text.write(("[\n" if place == 0 else ",\n") + indent(lines, " "))
        text.write("\n]\n" if text.tell() else "[]\n")
        text.seek(0)
        shutil.copyfileobj(text, sys.stdout)


def note(text: str, *, quiet: bool = False) -> None:
    """Print a remark on stderr, if there is one."""
    if text and not quiet:
        from rich.text import Text

        err().print(Text(printable(text)))
