"""Pages of one's own runs: of one data set its board; of several, one section each and the whole board behind it."""

from collections.abc import Sequence
from pathlib import Path

from robustbench_kpca._core.files import safe_name, write_atomic
from robustbench_kpca._core.web import render
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.markdown import code, link, plain
from robustbench_kpca.report.notes import caption
from robustbench_kpca.report.render import (
    CSV,
    JSON,
    MADE,
    PAGE,
    README,
    audit_section,
    flag_lines,
    numbers,
    require_own,
    write_board,
)
from robustbench_kpca.report.table import audit_lines, audit_summary, heading, shown


def write_report(title: str, boards: Sequence[Board], folder: Path) -> list[Path]:
    """Write README.md and index.html, each file whole or not at all; of several data sets also a folder for each.

    Raises:
        BadInputError: a page that would be replaced is no page of a board.

    """
    if len(boards) == 1:
        require_own(folder)
        return write_board(boards[0], folder)
    folders = [folder / _place(board) for board in boards]
    for one in (folder, *folders):
        require_own(one)
    whole = [page for board, one in zip(boards, folders, strict=True) for page in write_board(board, one)]
    pages = {folder / README: markdown(title, boards), folder / PAGE: html(title, boards)}
    for path, text in pages.items():
        write_atomic(path, text.encode())
    for name in (CSV, JSON):  # of an earlier report of one data set: the numbers are in the folders now
        (folder / name).unlink(missing_ok=True)
    return [*pages, *whole]


def markdown(title: str, boards: Sequence[Board]) -> str:
    """Render README.md of several data sets."""
    lines = [f"# {plain(title)}", ""]
    for board in boards:
        lines += [f"## {plain(board.spec.data)}", "", *numbers(board), "", *audit_section(board)]
        lines += [*flags, ""] if (flags := flag_lines(board)) else []
        lines += [f"Columns, records and commands: {link(_place(board), f'{_place(board)}/{README}')}.", ""]
    return "\n".join([*lines, f"## {MADE}", "", f"- Command: {code(boards[0].remake)}.", ""])


def html(title: str, boards: Sequence[Board]) -> str:
    """Render index.html of several data sets."""
    sections = [
        {
            "data": board.spec.data, "link": f"{_place(board)}/{PAGE}", "intro": board.spec.intro,
            "heads": [heading(board, column) for column in board.columns], "rows": shown(board),
            "caption": caption(board, intervals=True), "audit": audit_lines(board), "audited": audit_summary(board),
        }
        for board in boards
    ]  # fmt: skip
    return render("sections.html.j2", "report", title=title, sections=sections, made=MADE, command=boards[0].remake)


def _place(board: Board) -> str:
    """Return the name of the folder of a board."""
    return safe_name(board.spec.data)
