"""A table of records for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape

_HEAD = ("model", "data", "n", "protocol", "metrics (95 % interval)", "audit")


def html_table(rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table with one row a record; every text is escaped, and its line breaks are kept."""
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table>"


def _row(cells: Sequence[str]) -> str:
    texts = (escape(cell).replace("\n", "<br>") for cell in cells)
    return f"<tr>{''.join(f'<td>{text}</td>' for text in texts)}</tr>"
