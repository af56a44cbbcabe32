"""The files of a board: its page in Markdown and HTML, and its numbers as CSV and JSON."""

from collections.abc import Sequence
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import require_marked, write_atomic
from robustbench_kpca._core.web import as_html, as_markdown
from robustbench_kpca._core.web.document import PAGE, README
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_page import MADE, document
from robustbench_kpca.report.numbers import csv_text, json_text

CSV, JSON = "board.csv", "board.json"


def require_own(folder: Path) -> None:
    """Refuse to replace a README.md or index.html that is no page of a board.

    Raises:
        BadInputError: the folder holds such a file, or it cannot be read.

    """
    require_marked((folder / README, folder / PAGE), MADE, "is no page of a board")


def markdown(board: Board) -> str:
    """Render README.md."""
    return as_markdown.markdown(document(board))


def html(board: Board, folder: Path | None = None, downloads: Sequence[str] = ()) -> str:
    """Render index.html; see `board_page.document`."""
    return as_html.html(document(board, folder, downloads))


def write_board(board: Board, folder: Path) -> list[Path]:
    """Write README.md and index.html, and the numbers as board.csv and board.json, each whole or not at all.

    Raises:
        BadInputError: no record fills any cell.

    """
    if not any(run.record for run in board.runs):
        raise BadInputError(f"board '{board.name}' has no records", fix=f"see: {board.missing}")
    page = document(board, folder, (CSV, JSON))
    texts = {README: as_markdown.markdown(page), PAGE: as_html.html(page), CSV: csv_text(board), JSON: json_text(board)}
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())
    return [folder / name for name in texts]
