"""One page over all boards and packs below a folder, made from what `rbk board render` left there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import by_number, require_marked, write_atomic
from robustbench_kpca._core.strict import load_toml
from robustbench_kpca._core.web import render
from robustbench_kpca.report.render import JSON, PAGE

MADE = "Made by <code>rbk board index</code>."
"""Stands at the end of the page that is written here, and tells it from others."""


@dataclass(frozen=True)
class Entry:
    """A board: where its page is, and what leads it."""

    link: str
    title: str
    data: str
    rows: int
    rank_by: str
    first: str
    state: str


def write_index(folder: Path) -> Path:
    """Write index.html: every board with its first rows and its state, every pack with its pages.

    Raises:
        BadInputError: there is no rendered board, or an index.html that was not written here.

    """
    boards = [_entry(path) for path in sorted(folder.glob(f"*/{JSON}"))]
    packs = [_pack(path) for path in sorted(folder.glob("*/pack.toml"))]
    if not boards and not packs:
        raise BadInputError(f"no rendered board below {folder}", fix="run: rbk board render NAME")
    page = folder / PAGE
    require_marked([page], MADE, "was not written by rbk board index")
    write_atomic(page, render("index.html.j2", "report", title="Leaderboards", boards=boards, packs=packs).encode())
    return page


def _entry(path: Path) -> Entry:
    try:
        board = json.loads(path.read_bytes())
        first = [row["model"] for row in board["rows"] if row["rank"] == 1]
        state = "complete" if board["ready"] == board["runs"] else f"{board['ready']} of {board['runs']} runs"
        return Entry(
            f"{path.parent.name}/{PAGE}",
            board["title"],
            f"{board['data']} ({board['split']})",
            len(board["rows"]),
            rank_by=board["rank_by"],
            first=", ".join(first) or "–",
            state=state,
        )
    except (ValueError, KeyError, TypeError):
        raise BadInputError(f"{path} was not written by this version", fix="run: rbk board render NAME") from None


def _pack(path: Path) -> dict[str, Any]:
    content = load_toml(path)
    items = [
        (str(load_toml(item).get("title", item.stem)), f"{path.parent.name}/{item.stem}/{PAGE}")
        for item in sorted(path.parent.glob("*.toml"), key=by_number)
        if (path.parent / item.stem / PAGE).is_file()
    ]
    link = f"{path.parent.name}/{PAGE}" if (path.parent / PAGE).is_file() else ""
    return {
        "title": content.get("title", path.parent.name),
        "source": content.get("source", ""),
        "link": link,
        "items": items,
    }
