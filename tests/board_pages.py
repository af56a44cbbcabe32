"""The text of a board, and what its HTML page shows, read back."""

import html
import json
import re
from pathlib import Path


def _toml(fields):
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in fields.items())


def board_text(models, columns, **fields):
    """A `board.toml`: of each column, by its title, the protocol, the metric and a dictionary of what else it has."""
    head = {"title": "T", "intro": "", "data": "digits", "split": "test", "seed": 0, "rank_by": next(iter(columns))}
    text = _toml(head | {"models": models} | fields)
    for title, (protocol, metric, *more) in columns.items():
        text += "\n[[column]]\n" + _toml({"title": title, "protocol": protocol, "metric": metric, **dict(*more)})
    return text


def commands(page: Path) -> list[str]:
    """Return the commands of its cells, in their order."""
    return [html.unescape(command) for command in re.findall(r'<code class="command">(.*?)</code>', page.read_text())]
