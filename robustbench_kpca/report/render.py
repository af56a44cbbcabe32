"""The files of a board: its page in Markdown and HTML, and its numbers as CSV and JSON, for other programs.

A report on a user's own runs is one such board for each data set.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import as_csv, inert, require_marked, safe_name, write_atomic
from robustbench_kpca._core.web import as_html, as_markdown
from robustbench_kpca._core.web.document import PAGE, README
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report.answers import answers
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_page import MADE, document
from robustbench_kpca.report.latex import latex
from robustbench_kpca.report.lead import named, spoken
from robustbench_kpca.report.power import power
from robustbench_kpca.report.table import audited_share, cells

CSV, JSON, LATEX = "board.csv", "board.json", "board.tex"
HEAD = ("rank", "model", "column", "metric", "protocols", "value", "low", "high", "n", "best", "flags")


def markdown(board: Board) -> str:
    """Render README.md."""
    return as_markdown.markdown(document(board))


def html(board: Board, folder: Path | None = None, downloads: Sequence[str] = ()) -> str:
    """Render index.html; see `board_page.document`."""
    return as_html.html(document(board, folder, downloads))


def write_board(board: Board, folder: Path) -> list[Path]:
    """Write README.md and index.html, and the numbers as board.csv and board.json, each whole or not at all.

    Raises:
        BadInputError: no record fills any cell, and no entry is waited for.
    """
    if not any(run.record for run in board.runs) and board.spec.entries is None:
        raise BadInputError(f"board '{board.name}' has no records", fix=f"see: {board.missing}")
    page = document(board, folder, (CSV, JSON))
    texts = {README: as_markdown.markdown(page), PAGE: as_html.html(page), CSV: csv_text(board), JSON: json_text(board)}
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())
    return [folder / name for name in texts]


def csv_text(board: Board) -> str:
    """Render board.csv: one line per cell; values are not scaled, so accuracies are in [0, 1]."""
    lines: list[Sequence[object]] = [HEAD]
    for row in cells(board):
        for column, cell in zip(board.columns, row["columns"], strict=True):
            numbers = ["" if cell[name] is None else f"{cell[name]:.9g}" for name in ("value", "low", "high")]
            column_fields = [column.title, column.metric, " ".join(column.protocols)]
            cell_fields = [cell["n"] or "", int(cell["best"]), "; ".join(cell["flags"])]
            lines.append([row["rank"] or "", row["model"], *column_fields, *numbers, *cell_fields])
    return as_csv(map(inert, line) for line in lines)


def json_text(board: Board) -> str:
    """Render board.json: what the board is of, its columns, and its rows with their cells."""
    names = spoken(board)
    spec, ready = board.spec, sum(run.record is not None for run in board.runs)
    content: dict[str, Any] = {
        "name": board.name, "title": spec.title, "data": spec.data, "split": spec.split, "seed": spec.seed,
        "rank_by": spec.rank_by, "runs": len(board.runs), "ready": ready, "audited": audited_share(board),
        "columns": [
            {"title": column.title, "metric": column.metric, "protocols": column.protocols,
             "unit": metric_for(column.metric).unit.name, "lower_is_better": metric_for(column.metric).lower_is_better,
             "power": None if (gap := power(board, column)) is None else asdict(gap)}
            for column in board.columns
        ],
        "answers": [answer.content() for answer in answers(board)],
        "rows": [
            {"rank": row["rank"], "place": row["place"], "model": row["model"],
             "name": named(names, row["model"]), "marks": row["marks"],
             "cells": [None if cell["value"] is None else {key: value for key, value in cell.items() if key != "text"}
                       for cell in row["columns"]]}
            for row in cells(board)
        ],
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write_report(boards: Sequence[Board], folder: Path) -> list[Path]:
    """Write one board into `folder`, or several each into a subfolder that is named after its data.

    Raises:
        BadInputError: a page that would be replaced is no page of a board.
    """
    folders = _folders(boards, folder)
    for board_folder in folders:
        require_marked((board_folder / README, board_folder / PAGE), MADE, "is no page of a board")
    return [
        page for board, board_folder in zip(boards, folders, strict=True) for page in write_board(board, board_folder)
    ]


def write_latex(boards: Sequence[Board], folder: Path, *, intervals: bool) -> list[Path]:
    """Write the table of every board as board.tex into the folder in which `write_report` writes its page."""
    paths = [board_folder / LATEX for board_folder in _folders(boards, folder)]
    for board, path in zip(boards, paths, strict=True):
        write_atomic(path, latex(board, intervals=intervals).encode())
    return paths


def _folders(boards: Sequence[Board], folder: Path) -> list[Path]:
    return [folder / safe_name(board.spec.data) if len(boards) > 1 else folder for board in boards]
