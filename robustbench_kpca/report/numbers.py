"""The numbers of a board for other programs: board.csv and board.json."""

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report.answers import answers
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.power import detectable
from robustbench_kpca.report.spoken import named, spoken
from robustbench_kpca.report.table import MISSING, cells

HEAD = ("rank", "model", "column", "metric", "protocols", "value", "low", "high", "n", "best", "flags")


def csv_text(board: Board) -> str:
    """Render board.csv: one line per cell; values are not scaled, so accuracies are in [0, 1]."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    for row in cells(board):
        for column, cell in zip(board.columns, row["columns"], strict=True):
            numbers = ["" if cell[name] is None else f"{cell[name]:.9g}" for name in ("value", "low", "high")]
            what = [column.title, column.metric, " ".join(column.protocols)]
            rest = [cell["n"] or "", int(cell["best"]), "; ".join(cell["flags"])]
            writer.writerow([row["rank"] or "", row["model"], *what, *numbers, *rest])
    return text.getvalue()


def json_text(board: Board) -> str:
    """Render board.json: what the board is of, its columns, and its rows with their cells."""
    names = spoken(board)
    spec, ready = board.spec, sum(run.record is not None for run in board.runs)
    content: dict[str, Any] = {
        "name": board.name, "title": spec.title, "data": spec.data, "split": spec.split, "seed": spec.seed,
        "rank_by": spec.rank_by, "runs": len(board.runs), "ready": ready,
        "columns": [
            {"title": column.title, "metric": column.metric, "protocols": column.protocols,
             "unit": metric_for(column.metric).unit.name, "lower_is_better": metric_for(column.metric).lower_is_better,
             "power": _power(board, column)}
            for column in board.columns
        ],
        "answers": [answer.content() for answer in answers(board)],
        "rows": [
            {"rank": row["rank"], "place": row["place"], "model": row["model"],
             "name": named(names, row["model"]), "marks": row["marks"],
             "cells": [None if cell["text"] == MISSING else {key: value for key, value in cell.items() if key != "text"}
                       for cell in row["columns"]]}
            for row in cells(board)
        ],
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _power(board: Board, column: Column) -> dict[str, Any] | None:
    """Return which difference between two rows one comparison would have found with 80 %."""
    gap = detectable(board, column)
    return None if gap is None else {key: value for key, value in asdict(gap).items() if key != "column"}
