"""The page of a board: answers first, then its table, then what qualifies it."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robustbench_kpca._core.web import asset
from robustbench_kpca._core.web import document as doc
from robustbench_kpca._core.web.marks import unmarked
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report.answers import answers
from robustbench_kpca.report.board import Board, Run
from robustbench_kpca.report.board_spec import Column, Described, Row
from robustbench_kpca.report.cards import numbered
from robustbench_kpca.report.commands import command
from robustbench_kpca.report.corruption_figures import corruption_figures, scale
from robustbench_kpca.report.entries import holes
from robustbench_kpca.report.entry_checks import evaluator, stale
from robustbench_kpca.report.lead import contrast, lead, named, spoken
from robustbench_kpca.report.lines import FEW, PANELS
from robustbench_kpca.report.notes import (
    caption,
    explain,
    flagged,
    provenance,
    ranking,
    resampled,
    trainings,
    values_of,
    without,
)
from robustbench_kpca.report.plots import against_eps, clean_and_robust, clean_columns, eps_panels
from robustbench_kpca.report.power import power_of
from robustbench_kpca.report.separation import separation
from robustbench_kpca.report.table import (
    audit_balls,
    audit_lines,
    audit_summary,
    break_lines,
    common_flags,
    heading,
    shown,
    single_trainings,
)

MADE = "How this page was made"
"""A heading that tells pages of boards from others."""
_CURVES = f"Up to {FEW} models share a panel; more have one each, the others in grey (the first {PANELS} by value)."
_ARXIV = re.compile(r"(.*?),? *(arXiv:[0-9]{4}[.][0-9]{4,5})[.]?", re.DOTALL)


def document(board: Board, folder: Path | None = None, downloads: Sequence[str] = ()) -> doc.Document:
    """Return the page of a board: answers, then the table, then what qualifies it, folded.

    Args:
        folder: where the page will lie; links to records lead from there. None: no links.
        downloads: files beside the page that have its numbers.
    """
    names, metrics = spoken(board), dict.fromkeys(column.metric for column in board.columns)
    blocks: list[doc.Block] = [
        *numbered(answers(board), names),
        *_lead(board, names),
        table_block(board, names, downloads),
        *_beside_the_table(board),
        doc.Heading("Audit", "audit"),
        *audit_blocks(board),
        *entry_blocks(board),
        *_figures(board),
        doc.Details(
            "Columns",
            [
                doc.Bullets(
                    [(doc.Strong(column.title), ": ", doc.Prose(explain(board, column))) for column in board.columns]
                ),
                doc.Bullets([(doc.Code(name), f": {metric_for(name).what}") for name in metrics]),
            ],
        ),
        doc.Paragraph(doc.Prose(board.spec.intro)),
        doc.Widget("runs.html.j2", "report", {"runs": [_run(board, *run, folder) for run in enumerate(board.runs)]}),
        doc.Heading(MADE),
        doc.Bullets([doc.Prose(line.removeprefix("- ")) for line in provenance(board)]),
    ]
    return doc.Document(board.spec.title, blocks, style=_style(), script=asset("report", "board.js"))


def _lead(board: Board, names: Mapping[str, str]) -> Iterator[doc.Block]:
    """Say in one line what was found, and what a row is."""
    decided, sentences = separation(board), [text for text in (contrast(board), lead(board, names)) if text]
    if decided:
        yield doc.Paragraph(doc.Strong(decided))
    if sentences:
        yield doc.Paragraph(" ".join(sentences) if decided else doc.Strong(" ".join(sentences)))
        if all(board.planned(row.title) == 1 for row in board.spec.rows):
            samples = resampled(board)
            yield doc.Paragraph(
                f"A row is one trained network: intervals are over {samples}, not over trainings.", soft=True
            )


def table_block(board: Board, names: Mapping[str, str], downloads: Sequence[str] = ()) -> doc.Block:
    """Return the table: sortable and filterable in HTML, where the ranked column is the first, so a phone shows it."""
    rows = _rows(board)
    for row in rows:
        row["name"] = named(names, row["model"])
    order = sorted(range(len(board.columns)), key=lambda place: board.columns[place].title != board.spec.rank_by)
    values = {
        "title": board.spec.title,
        "rows": [{**row, "columns": [row["columns"][place] for place in order]} for row in rows],
        "facets": _facets(rows),
        "values": values_of(board),
        "columns": [_head(board, board.columns[place]) for place in order],
        "downloads": downloads,
        "ranking": ranking(board),
    }
    return doc.Widget("board_table.html.j2", "report", values, [plain_table(board, names, rows)])


def plain_table(board: Board, names: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> doc.Table:
    """Return the table as it stands on paper; `rows`: of `shown`."""
    heads = [
        f"{heading(board, column)} ({under})" if (under := _under(board, column)) else heading(board, column)
        for column in board.columns
    ]
    cells = [
        (
            row["place"],
            " ".join([named(names, row["model"]), *row["marks"]]),
            *(
                doc.Strong(doc.Numbers(cell["text"])) if cell["best"] else doc.Numbers(cell["text"])
                for cell in row["columns"]
            ),
        )
        for row in rows
    ]
    return doc.Table(("Place", "Model", *heads), cells)


def _under(board: Board, column: Column) -> str:
    """Return what stands under a head: the number of samples, unless the title of the column says it."""
    estimates = (board.estimate(row.title, column) for row in board.spec.rows)
    sizes = sorted({estimate.n for estimate in estimates if estimate is not None})
    return f"n = {sizes[-1]:,}" if sizes and "n = " not in column.title else ""


def _beside_the_table(board: Board) -> list[doc.Block]:
    """Return what qualifies the table: how it is read is folded."""
    missing = sum(run.record is None for run in board.runs)
    remarks = [doc.Paragraph(doc.Prose(text)) for text in (flagged(board), without(board), board.left_out) if text]
    broken = [line for row in board.spec.rows for line in break_lines(board, row)]
    if missing:
        text = f"{missing} of {len(board.runs)} runs are missing: "
        remarks.append(doc.Paragraph((text, doc.Code(board.missing), ".")))
    notes = (caption(board), ranking(board), trainings(board), power_of(board))
    read: list[doc.Block] = [doc.Paragraph(doc.Prose(text)) for text in notes if text]
    blocks: list[doc.Block] = [*[doc.Bullets(broken)] * bool(broken), *remarks, doc.Details("How to read this", read)]
    single: list[Sequence[doc.Line]] = [(*row[:2], *map(doc.Numbers, row[2:])) for row in single_trainings(board)]
    if single:
        heads = ["Row", "Training", *(heading(board, column) for column in board.columns)]
        blocks.append(doc.Details("Single trainings", [doc.Table(heads, single)]))
    return blocks


def audit_blocks(board: Board) -> list[doc.Block]:
    """Return what audits found, the flags of records, and the remarks."""
    lines = audit_lines(board)
    blocks: list[doc.Block] = [doc.Bullets([f"{mark} {rows}: {text}" for mark, rows, text in lines])] if lines else []
    blocks += [] if lines else [doc.Paragraph(audit_summary(board))]
    blocks += [doc.Paragraph(balls)] if (balls := audit_balls(board)) else []
    flags = flag_lines(board)
    return [*blocks, doc.Details(f"Flags: {len(flags)}", [doc.Bullets(flags)])] if flags else blocks


def entry_blocks(board: Board) -> list[doc.Block]:
    """Return what an open board says of its entries: makers, holes, stale cells, and how each cell was checked."""
    if not board.entries:
        return []
    makers = [
        (entry.name, entry.card.by, entry.card.title, entry.card.paper or "–", entry.card.training,
         entry.card.weights or "of the package", entry.card.licence)
        for entry in board.entries.values()
    ]  # fmt: skip
    checked = [
        (run.model, doc.Code(run.evaluation.protocol), board.entries[run.model].mark(run.record),
         doc.Code(run.record.spec.protocol.digest[:12]), evaluator(run.record) or "–")
        for run in board.runs
        if run.record is not None and run.model in board.entries
    ]  # fmt: skip
    remarks = [doc.Bullets(lines) for lines in (holes(board.entries), stale(board)) if lines]
    return [
        doc.Heading("Entries"),
        doc.Table(("Model", "By", "What", "Paper", "Training", "Weights", "Licence"), makers),
        *remarks,
        doc.Details(
            "How each cell was checked", [doc.Table(("Model", "Protocol", "Mark", "Digest", "Made by"), checked)]
        ),
    ]


def flag_lines(board: Board) -> list[doc.Line]:
    """Say every flag of a record once for each protocol: of which models, or that it is of all; then the remarks."""
    models_of: dict[tuple[str, str], list[str]] = {}
    for run in board.runs:
        for flag in run.record.flags if run.record else ():
            models_of.setdefault((run.evaluation.protocol, flag), []).append(run.model)
    runs = Counter(run.evaluation.protocol for run in board.runs if run.record)
    lines: list[doc.Line] = [
        (*_whose(models, runs[protocol]), " under ", doc.Code(protocol), f": {flag}")
        for (protocol, flag), models in models_of.items()
    ]
    return [*lines, *board.remarks]


def _whose(models: Sequence[str], runs: int) -> list[doc.Word]:
    if len(models) == runs > 3:
        return [f"all {runs} runs"]
    first, *rest = map(doc.Code, dict.fromkeys(models))
    return [first, *(word for model in rest for word in ("; ", model))]


def _figures(board: Board) -> Iterator[doc.Block]:
    if scatter := clean_and_robust(board):
        yield from (doc.Heading("Clean against robust"), doc.Figure(scatter, _scatter_caption(board)))
    attacked = " and ".join(dict.fromkeys(panel.metric.title for panel in eps_panels(board).values()))
    for place, (name, figure) in enumerate(against_eps(board).items()):
        if place == 0:
            yield doc.Heading(f"{attacked} against the attacker's budget")
        yield doc.Figure(figure, f"{name}; bands are 95 % intervals. {_CURVES}")
    for drawn in corruption_figures(board):
        yield doc.Heading(f"Under corruption: {drawn.title}")
        if drawn.curves:
            what = f"{drawn.quantity[0].upper()}{drawn.quantity[1:]} by severity, mean over corruptions"
            yield doc.Figure(drawn.curves, f"{what}; bands are 95 % intervals. {_CURVES}")
        for place, heatmap in enumerate(drawn.maps):
            heat = doc.Widget("heat.html.j2", "report", {"map": heatmap, "found": drawn})
            yield heat if place == 0 else doc.Details(heatmap.title.capitalize(), [heat])
            if place == 0 and drawn.left_out:
                yield doc.Paragraph(f"{drawn.left_out} models of lower rank are not shown.")


def _style() -> str:
    steps = " ".join(f".h{step} {{ background: {colour}; color: {text}; }}" for step, colour, text in scale())
    return f"{asset('report', 'board.css')}\n{steps}"


def _scatter_caption(board: Board) -> str:
    columns = clean_columns(board)
    if columns is None:
        return ""
    return (
        f"{columns[1].title} against {columns[0].title}, of the same samples, with 95 % intervals. Dashed: the Pareto "
        "front, the models than which no other is better in one and as good in the other. The numbers are in the table "
        "above, where they may be of more samples."
    )


def _rows(board: Board) -> list[dict[str, Any]]:
    """Return what the table shows, with links, facets and widths of bars."""
    rows = shown(board)
    places = {row.title: row for row in board.spec.rows}
    common = {column.title: common_flags(board, column) for column in board.columns}
    for table_row in rows:
        row = places[table_row["model"]]
        about = board.spec.described(row.models[0])
        table_row |= {"facets": _facets_of(board, row, about), "paper": about.paper_address}
        for column, cell in zip(board.columns, table_row["columns"], strict=True):
            if cell["value"] is not None:
                unit = metric_for(column.metric).unit
                cell |= {
                    "runs": board.runs_of(row, column),
                    "number": unit.number(cell["value"]),
                    "interval": unit.interval(cell["low"], cell["high"]),
                    "share": f"{unit.share(cell['value']):.1f}",
                    "flags": [flag for flag in cell["flags"] if flag not in common[column.title]],
                }
    return rows


def _facets_of(board: Board, row: Row, about: Described) -> dict[str, str]:
    facets = {"Attention": about.attention, "Backbone": about.backbone, "Training": about.training}
    if about.adversarial is not None:
        facets["Adversarial"] = "yes" if about.adversarial else "no"
    sizes = [run.record.spec.model.parameters for run in board.runs_of_model(row.models[0]) if run.record]
    facets["Parameters"] = f"{float(f'{max(sizes) / 1e6:.1g}'):g} M" if sizes else None
    return {name: value for name, value in facets.items() if value is not None}


def _facets(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    facets: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row["facets"].items():
            facets.setdefault(name, []).append(value)
    return {name: sorted(set(values)) for name, values in facets.items() if len(set(values)) > 1}


def _head(board: Board, column: Column) -> dict[str, Any]:
    metric = metric_for(column.metric)
    run = next((run for run in board.runs if run.record and run.evaluation in board.spec.needed(column)), None)
    citations = run.record.citations if run is not None and run.record is not None else ()
    return {
        "title": column.title,
        "heading": heading(board, column),
        "under": _under(board, column),
        "lower": metric.lower_is_better,
        "ranked": column.title == board.spec.rank_by and not board.ranking.sizes,
        "what": unmarked(f"{metric.what} {explain(board, column)}".strip()),
        "cites": [match.groups() if (match := _ARXIV.fullmatch(cited)) else (cited, "") for cited in citations],
    }


def _run(board: Board, number: int, run: Run, folder: Path | None) -> dict[str, Any]:
    protocol = ", ".join(filter(None, (run.evaluation.protocol, run.evaluation.replaced)))
    link = _link(run.record.path, folder) if run.record is not None else ""
    table = link.rpartition("/")[0] + "/" + run.record.outcomes_file.file if run.record is not None and link else ""
    words = _with_weights(run.record.command if run.record is not None else (), board.files.get(run.model))
    typed = words[0] if len(words) == 1 else shlex.join(words)  # one item: a call from Python
    return {
        "number": number,
        "model": run.model,
        "protocol": protocol,
        "state": run.state,
        "link": link,
        "table": table.removeprefix("/"),
        "command": typed or command(board.spec, [run], "runs"),
    }


def _with_weights(words: Sequence[str], file: str | None) -> Sequence[str]:
    """Put a file of weights in place of the one that a command names; without a file the command stays as it is."""
    if file is None or "--checkpoint" not in words:
        return words
    place = words.index("--checkpoint") + 1
    return [*words[:place], file, *words[place + 1 :]]


def _link(path: Path | None, folder: Path | None) -> str:
    """Return the way from a page's folder to a file; "" where there is none."""
    if path is None or folder is None:
        return ""
    try:
        return os.path.relpath(path, folder).replace(os.sep, "/")
    except ValueError:  # another drive
        return ""
