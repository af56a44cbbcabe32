"""The files of a board: GitHub-flavoured markdown, an HTML page, and its numbers as CSV and JSON."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import require_marked, write_atomic
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report.answers import answers
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_page import html
from robustbench_kpca.report.explain import explain, provenance
from robustbench_kpca.report.markdown import code, paragraph, plain, prose
from robustbench_kpca.report.notes import caption, ranking, trainings, without
from robustbench_kpca.report.numbers import csv_text, json_text
from robustbench_kpca.report.power import power_of
from robustbench_kpca.report.table import audit_balls, audit_lines, audit_summary, frame, single_heads, single_trainings

CSV, JSON = "board.csv", "board.json"
README, PAGE = "README.md", "index.html"
MADE = "How this page was made"
"""A heading that both pages have."""


def markdown(board: Board) -> str:
    """Render README.md."""
    spec = board.spec
    single = single_trainings(board)
    lines = [f"# {plain(spec.title)}", "", *numbers(board)]
    if single:
        table = pd.DataFrame(single, columns=single_heads(board))
        lines += ["", "## Single trainings", "", _table(table, single_heads(board)[:2])]
    lines += ["", "## Audit", "", *audit_section(board)]
    lines += [*(["## Flags", "", *flags, ""] if (flags := flag_lines(board)) else []), "## Columns", ""]
    lines += [f"- **{plain(column.title)}**: {prose(explain(board, column))}" for column in board.columns]
    metrics = dict.fromkeys(column.metric for column in board.columns)
    lines += ["", *(f"- {code(name)}: {plain(metric_for(name).what)}" for name in metrics)]
    lines += ["", f"## {MADE}", "", *map(_item, provenance(board)), ""]
    return "\n".join(lines)


def numbers(board: Board) -> list[str]:
    """Render the table with what stands above and below it: lines of Markdown."""
    missing = sum(run.record is None for run in board.runs)
    lines = [
        paragraph(board.spec.intro),
        "",
        *(line for text in answers(board) for line in (f"**{prose(text)}**", "")),
        _table(frame(board), ["Model"]),
    ]
    notes = (without(board), caption(board, intervals=True), ranking(board), trainings(board), power_of(board))
    lines += [line for text in notes if text for line in ("", prose(text))]
    left_out = [f"{missing} of {len(board.runs)} runs are missing: {code(board.missing)}."] if missing else []
    left_out += [prose(board.left_out)] if board.left_out else []
    return [*lines, "", " ".join(left_out)] if left_out else lines


def require_own(folder: Path) -> None:
    """Refuse to replace a README.md or index.html that is no page of a board.

    Raises:
        BadInputError: the folder holds such a file, or it cannot be read.

    """
    require_marked((folder / README, folder / PAGE), MADE, "is no page of a board")


def write_board(board: Board, folder: Path) -> list[Path]:
    """Write README.md and index.html, and the numbers as board.csv and board.json, each whole or not at all.

    Raises:
        BadInputError: no record fills any cell.

    """
    if not any(run.record for run in board.runs):
        raise BadInputError(f"board '{board.name}' has no records", fix=f"see: {board.missing}")
    pages = {
        folder / README: markdown(board),
        folder / PAGE: html(board, folder, (CSV, JSON)),
        folder / CSV: csv_text(board),
        folder / JSON: json_text(board),
    }
    for path, text in pages.items():
        write_atomic(path, text.encode())
    return list(pages)


def _table(table: pd.DataFrame, names: Sequence[str]) -> str:
    """Render a table of texts. Headings and the columns `names` hold names; the others hold our own numbers."""
    shown = table.assign(**{name: table[name].map(plain) for name in names}).rename(columns=plain)
    return shown.to_markdown(index=False, disable_numparse=True)


def _item(line: str) -> str:
    return f"- {prose(line.removeprefix('- '))}"


def audit_section(board: Board) -> list[str]:
    """Render what audits found: lines of Markdown."""
    found = audit_lines(board)
    lines = [f"- {mark} {plain(models)}: {plain(text)}" for mark, models, text in found]
    balls = audit_balls(board)
    return [*(lines or [audit_summary(board)]), "", *([plain(balls), ""] if balls else [])]


def flag_lines(board: Board) -> list[str]:
    """Say every flag of a record once for each protocol: of which models, or that it is of all; then the remarks."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in board.runs:
        for flag in run.record.flags if run.record else ():
            found.setdefault((run.evaluation.protocol, flag), []).append(run.model)
    runs = Counter(run.evaluation.protocol for run in board.runs if run.record)
    lines = [
        f"- {_whose(models, runs[protocol])} under {code(protocol)}: {plain(flag)}"
        for (protocol, flag), models in found.items()
    ]
    lines += [f"- {plain(remark)}" for remark in board.remarks]
    return lines


def _whose(models: Sequence[str], runs: int) -> str:
    return f"all {runs} runs" if len(models) == runs > 3 else ", ".join(map(code, dict.fromkeys(models)))
