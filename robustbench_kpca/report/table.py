"""The table of a board: what stands in its rows and cells."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import pandas as pd

from robustbench_kpca.metrics import Unit, common_unit, metric_for
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.audit_versions import inactive
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column, Row
from robustbench_kpca.report.breaks import breakers

MISSING = "not run"
FLAGGED, INACTIVE, QUICK, UNAUDITED, BROKEN = "⚠", "∅", "◐", "○", "✗"  # beside a model's name
_AUDITED = "Every model that is attacked here was audited for masked gradients, and no flag was raised."
_NOT_ASKED = (
    "No audit raised a flag. Audits of this task attack nothing, so nothing here says whether gradients are masked."
)
_NOTHING = "No attack was evaluated, so there was nothing to audit."


def spell(estimate: Estimate, unit: Unit) -> str:
    """Write an estimate as `93.4 [90.9, 95.3]`: the value and its 95 % interval."""
    return f"{unit.number(estimate.value)} {unit.interval(estimate.low, estimate.high)}"


def board_unit(board: Board) -> Unit | None:
    """Return the unit of all columns, or None where they have different ones: then headings name them."""
    return common_unit(metric_for(column.metric).unit for column in board.spec.column)


def heading(board: Board, column: Column) -> str:
    """Return a column's title, with its unit where columns have different ones, and an arrow where lower is better."""
    metric = metric_for(column.metric)
    title = column.title if board_unit(board) else metric.unit.label(column.title)
    return f"{title} ↓" if metric.lower_is_better else title


def cells(board: Board) -> list[dict[str, Any]]:
    """One row per row of the board: its rank and title and, per column, value, interval, text and whether it is best.

    Columns are in the order in which they are shown: `Board.columns`.
    """
    marks = telling_marks(board)
    return [
        {
            "rank": board.ranks[row.title],
            "place": board.ranking.place(row.title),
            "model": row.title,
            "marks": marks[row.title],
            "columns": [_cell(board, row, column) for column in board.columns],
        }
        for row in board.ranked_rows()
    ]


def shown(board: Board) -> list[dict[str, Any]]:
    """Return the rows of `cells` that have a number; all of them where none has one."""
    left_out = without_numbers(board)
    return [row for row in cells(board) if row["model"] not in left_out]


def without_numbers(board: Board) -> list[str]:
    """Return the titles of the rows that `shown` leaves out."""
    titles = [row.title for row in board.spec.rows]
    empty = [title for title in titles if not any(board.estimate(title, column) for column in board.spec.column)]
    return [] if empty == titles else empty


def common_flags(board: Board, column: Column) -> list[str]:
    """Return the flags of all numbers of a column, where it has several: they distinguish none."""
    flags = [_flags(board.trainings(row.title, column)) for row in board.spec.rows]
    numbered = [of_row for of_row, row in zip(flags, board.spec.rows, strict=True) if board.estimate(row.title, column)]
    return [flag for flag in numbered[0] if all(flag in of_row for of_row in numbered)] if len(numbered) > 1 else []


def _flags(trainings: Iterable[Iterable[Record]]) -> list[str]:
    return [flag for records in trainings for record in records for flag in record.flags]


def _cell(board: Board, row: Row, column: Column) -> dict[str, Any]:
    estimate, trainings = board.estimate(row.title, column), board.trainings(row.title, column)
    if estimate is None:
        nothing = dict.fromkeys(("value", "low", "high", "n"))
        text = MISSING if any(board.spec.needs(model, column) for model in row.models) else "–"
        return {"column": column.title, "text": text, **nothing, "part": "", "flags": [], "best": False}
    part = f"({len(trainings)} of {len(row.models)})" if len(trainings) < len(row.models) else ""
    single = {model: number.value for model in row.models if (number := board.estimate_of(model, column)) is not None}
    return {
        "column": column.title,
        "text": f"{_between(board, row, column) or spell(estimate, metric_for(column.metric).unit)} {part}".rstrip(),
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "n": estimate.n,
        "part": part,
        "flags": _flags(trainings),
        "best": row.title in board.winners[column.title],
        **({"trainings": single} if len(row.models) > 1 else {}),
        **({"certified": lower.value} if (lower := board.certified(row.title, column)) is not None else {}),
    }


def _between(board: Board, row: Row, column: Column) -> str:
    """Write a bracket, `[12.5, 40.6]`: what is certified, and what the attack left; "" for a column without one."""
    if column.proven is None:
        return ""
    unit = metric_for(column.metric).unit
    ends = board.certified(row.title, column), board.estimate(row.title, column)
    return f"[{', '.join(MISSING if end is None else unit.number(end.value) for end in ends)}]"


def single_trainings(board: Board) -> list[list[str]]:
    """Return the numbers of each training of the rows with several: row, model, and one text per column."""
    return [
        [row.title, model, *(_text(board.estimate_of(model, column), column) for column in board.columns)]
        for row in board.ranked_rows()
        if len(row.models) > 1
        for model in row.models
        if any(board.estimate_of(model, column) for column in board.columns)
    ]


def _text(estimate: Estimate | None, column: Column) -> str:
    return MISSING if estimate is None else spell(estimate, metric_for(column.metric).unit)


def frame(board: Board) -> pd.DataFrame:
    """Return the rows that have a number as a table for terminals; the best value is starred only as a clear winner."""
    table = [
        {"#": row["place"], "Model": " ".join([row["model"], *row["marks"]])}
        | {
            heading(board, column): f"**{cell['text']}**" if cell["best"] else cell["text"]
            for column, cell in zip(board.columns, row["columns"], strict=True)
        }
        for row in shown(board)
    ]
    return pd.DataFrame(table)


def audit_marks(board: Board, row: Row) -> dict[str, list[str]]:
    """Mark -> its meaning here: the flags of the row's audits, an inactive mechanism, quick audits, missing audits."""
    audits = board.audits(row)
    flags = [
        " ".join(f"{check.name}: {check.saw} ({check.why})".split())
        for audit in audits
        if audit is not None
        for check in audit.flags
    ]
    marks = {FLAGGED: flags} if flags else {}
    idle = inactive(audit for audit in audits if audit is not None)
    marks |= {INACTIVE: [f"the {idle}"]} if idle else {}
    checks = sorted({check.name for audit in audits if audit and audit.plan.level == "quick" for check in audit.checks})
    marks |= {QUICK: [f"quick audit, of these checks alone: {', '.join(checks)}"]} if checks else {}
    return marks | ({UNAUDITED: ["not audited"]} if None in audits else {})


def all_marks(board: Board, row: Row) -> list[str]:
    """Return the marks of a row's audits, and one where images of others lower a number of the row."""
    return [*audit_marks(board, row), *[BROKEN] * bool(break_lines(board, row))]


def break_lines(board: Board, row: Row) -> list[str]:
    """Say who broke a row: `✗ vit_digits: broken by A. Finder (12 images), in “Best known”: …`."""
    return [
        f"{BROKEN} {model}: broken by {found.by} ({count} image{'s' * (count > 1)}), in “{column.title}”: "
        f"{found.method}; SHA-256 {found.sha256[:12]}"
        for column in board.columns
        if column.imported
        for model in row.models
        for found, count in breakers(board.records(model, column))
    ]


def audit_lines(board: Board) -> list[tuple[str, str, str]]:
    """Explain every mark: the mark, the rows that have it, and what the audit found; one line for equal ones."""
    rows_of: dict[tuple[str, str], list[str]] = {}
    partly = {row.title: any(board.audits(row)) for row in board.spec.rows}
    for row in board.spec.rows:
        for mark, texts in audit_marks(board, row).items():
            for text in texts:
                restriction = " for at least one of its attacks" if mark == UNAUDITED and partly[row.title] else ""
                rows_of.setdefault((mark, f"{text}{restriction}"), []).append(row.title)
    order = (FLAGGED, INACTIVE, QUICK, UNAUDITED)
    everyone = len(attacked_rows(board))
    return [
        (mark, f"all {everyone} rows" if len(rows) == everyone > 3 else "; ".join(rows), text)
        for (mark, text), rows in sorted(rows_of.items(), key=lambda item: order.index(item[0][0]))
    ]


def attacked_rows(board: Board) -> list[str]:
    """Return the titles of rows that are attacked: an audit of these means something."""
    return [row.title for row in board.spec.rows if board.audits(row)]


def audited_share(board: Board) -> dict[str, int]:
    """Return how many rows are attacked, and of how many a network has a full audit, or a quick one at most."""
    audits = {title: [each for each in board.audits(board.row(title)) if each] for title in attacked_rows(board)}
    full = sum(any(audit.plan.level == "full" for audit in of_row) for of_row in audits.values())
    return {"rows": len(audits), "full": full, "quick": sum(map(bool, audits.values())) - full}


def telling_marks(board: Board) -> dict[str, list[str]]:
    """Return row title -> marks beside its name, without those that all attacked rows have."""
    marks = {row.title: all_marks(board, row) for row in board.spec.rows}
    attacked = attacked_rows(board)
    common = {mark for mark in (QUICK, UNAUDITED) if len(attacked) > 1 and all(mark in marks[row] for row in attacked)}
    return {title: [mark for mark in marks_of_row if mark not in common] for title, marks_of_row in marks.items()}


def audit_balls(board: Board) -> str:
    """Say which attacks are within another ball than the audits of their models; "" where there are none."""
    balls: dict[str, dict[str, dict[str, None]]] = {}
    audited_balls = set[str]()
    for column in board.columns:
        records = [record for row in board.spec.rows for cell in board.trainings(row.title, column) for record in cell]
        for record in records:
            if record.audit is not None and record.audit.plan.attacks:
                audited = str(Threat(record.audit.plan.norm, record.audit.plan.eps))
                audited_balls.add(audited)
                attacked = _ball(record.spec.protocol.resolved)
                if attacked != audited:
                    balls.setdefault(audited, {}).setdefault(attacked, {})[f"“{column.title}”"] = None
    listed = {
        audited: "; ".join(f"{ball} ({', '.join(titles)})" for ball, titles in other.items())
        for audited, other in balls.items()
    }
    return " ".join(
        f"Audits were made within {audited}{' alone' * (len(audited_balls) == 1)}. "
        f"They say nothing of attacks within another ball: {other}."
        for audited, other in listed.items()
    )


def _ball(protocol: Mapping[str, Any]) -> str:
    ball = {field.name: protocol[field.name] for field in fields(Threat) if field.name in protocol}
    threat, space = Threat(**ball), protocol["space"]
    return str(threat) if space == "pixel" else f"{threat} in {space} space"


def audit_summary(board: Board) -> str:
    """Return the sentence that stands in place of marks where there are none."""
    audits = [audit for row in board.spec.rows for audit in board.audits(row)]
    asks_for_gradients = any(check.name == "gradients" for audit in audits if audit for check in audit.checks)
    return _NOTHING if not audits else _AUDITED if asks_for_gradients else _NOT_ASKED
