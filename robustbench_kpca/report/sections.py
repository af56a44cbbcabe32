"""Pages of one's own runs: of one data set its board; of several, one section each and the whole board behind it."""

from collections.abc import Sequence
from pathlib import Path

from robustbench_kpca._core.files import safe_name
from robustbench_kpca._core.web.document import Block, Code, Document, Heading, Link, Paragraph, Prose
from robustbench_kpca._core.web.write import write_page
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_page import MADE, audit_blocks, plain_table
from robustbench_kpca.report.notes import caption
from robustbench_kpca.report.render import CSV, JSON, require_own, write_board
from robustbench_kpca.report.spoken import spoken
from robustbench_kpca.report.table import shown


def write_report(title: str, boards: Sequence[Board], folder: Path) -> list[Path]:
    """Write README.md and index.html, each file whole or not at all; of several data sets also a folder for each.

    Raises:
        BadInputError: a page that would be replaced is no page of a board.

    """
    if len(boards) == 1:
        require_own(folder)
        return write_board(boards[0], folder)
    folders = [folder / safe_name(board.spec.data) for board in boards]
    for place in (folder, *folders):
        require_own(place)
    whole = [page for board, place in zip(boards, folders, strict=True) for page in write_board(board, place)]
    pages = write_page(document(title, boards), folder)
    for name in (CSV, JSON):  # of an earlier report of one data set: the numbers are in the folders now
        (folder / name).unlink(missing_ok=True)
    return [*pages, *whole]


def document(title: str, boards: Sequence[Board]) -> Document:
    """Return the page of several data sets: a section each."""
    blocks: list[Block] = []
    for board in boards:
        blocks += [Heading(board.spec.data), Paragraph(Prose(board.spec.intro))]
        blocks.append(plain_table(board, spoken(board), shown(board)))
        blocks.append(Paragraph(Prose(caption(board)), soft=True))
        blocks += audit_blocks(board)
        blocks.append(Paragraph(Link("Columns, records and commands", folder=safe_name(board.spec.data))))
    blocks += (Heading(MADE), Paragraph(("Command: ", Code(boards[0].remake))))
    return Document(title, blocks)
