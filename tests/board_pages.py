"""The text of a board, of a pack and of its tables, and what an HTML page shows, read back."""

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


def pack_text(arms, paper_arms, limit=None):
    """A `pack.toml` of the test digits, of which `limit` are taken, and of ImageNet; an arm is a line of TOML."""
    few = "" if limit is None else f", limit = {limit}"
    data = {"embedded": f'{{ data = "digits", split = "test"{few} }}', "paper": '{ data = "imagenet", split = "val" }'}
    text = 'title = "A paper"\nsource = "Nobody (2026)"\nintro = "Said."\n'
    for scale, lines in (("embedded", arms), ("paper", paper_arms)):
        text += f'\n[{scale}]\nintro = "Seen."\n\n[{scale}.samples]\nval = {data[scale]}\n\n[{scale}.arms]\n'
        text += "".join(f"{line}\n" for line in lines)
    return text


def table_text(arms, columns, **fields):
    """A table of a pack; columns are those of `board_text`."""
    head = {"kind": "table", "title": "Table 1", "intro": "Both.", "arms": arms, "rank_by": next(iter(columns))}
    text = _toml(head | fields)
    for title, (protocol, metric, *more) in columns.items():
        column = {"title": title, "samples": "val", "protocol": protocol, "metric": metric, **dict(*more)}
        text += "\n[[column]]\n" + _toml(column)
    return text


CLEAN = {"Clean": ("clean", "clean_accuracy")}


def commands(page: Path) -> list[str]:
    """Return the commands of its cells, in their order."""
    return [html.unescape(command) for command in re.findall(r'<code class="command">(.*?)</code>', page.read_text())]
