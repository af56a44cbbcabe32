"""The HTML page of a board, as one self-contained file: what its template is given."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustbench_kpca._core.web import render
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report.answers import answers
from robustbench_kpca.report.board import Board, Run
from robustbench_kpca.report.board_spec import Column, Described, Row
from robustbench_kpca.report.commands import command
from robustbench_kpca.report.corruption_figures import corruption_figures
from robustbench_kpca.report.explain import explain, provenance
from robustbench_kpca.report.heatmap import scale
from robustbench_kpca.report.lines import FEW, PANELS
from robustbench_kpca.report.markdown import unmarked
from robustbench_kpca.report.notes import caption, ranking, trainings, values_of, without
from robustbench_kpca.report.plots import against_eps, clean_and_robust, clean_columns, eps_panels
from robustbench_kpca.report.power import power_of
from robustbench_kpca.report.table import (
    audit_balls,
    audit_lines,
    audit_summary,
    heading,
    shown,
    single_heads,
    single_trainings,
)

_CURVES = f"Up to {FEW} models share a panel; more have one each, the others in grey (the first {PANELS} by value)."
_ARXIV = re.compile(r"(.*?),? *(arXiv:[0-9]{4}[.][0-9]{4,5})[.]?", re.DOTALL)


def html(board: Board, folder: Path | None = None, downloads: Sequence[str] = ()) -> str:
    """Render index.html: sortable, filterable, no request to anywhere.

    Args:
        board: with its records.
        folder: where the page will lie; links to records lead from there. None: no links.
        downloads: files beside the page that have its numbers.

    """
    spec = board.spec
    rows = _rows(board)
    notes = (without(board), caption(board, intervals=False), trainings(board), board.left_out)
    return render(
        "board.html.j2", "report", title=spec.title, intro=unmarked(spec.intro), rows=rows, facets=_facets(rows),
        answers=answers(board), power=power_of(board),
        caption=unmarked(" ".join(filter(None, notes))), ranking=ranking(board),
        values=values_of(board),
        columns=[_head(board, column) for column in board.columns], downloads=downloads,
        audit=audit_lines(board), audited=audit_summary(board), balls=audit_balls(board), remarks=board.remarks,
        single=single_trainings(board),
        single_heads=single_heads(board), scatter=clean_and_robust(board), scatter_caption=_scatter_caption(board),
        attacked=" and ".join(dict.fromkeys(panel.metric.title for panel in eps_panels(board).values())),
        figures=against_eps(board), curves_note=_CURVES, corruptions=corruption_figures(board), scale=scale(),
        runs=[_run(board, number, run, folder) for number, run in enumerate(board.runs)],
        provenance=[unmarked(line.removeprefix("- ")) for line in provenance(board)],
    )  # fmt: skip


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
    found = shown(board)
    given = list(board.ranks.values())
    places = {row.title: row for row in board.spec.rows}
    for made in found:
        row = places[made["model"]]
        about = board.spec.described(row.models[0])
        made |= {
            "tied": given.count(made["rank"]) > 1 if made["rank"] else False,
            "facets": _facets_of(board, row, about),
            "paper": about.paper_address,
        }
        for column, cell in zip(board.columns, made["columns"], strict=True):
            if cell["value"] is not None:
                unit = metric_for(column.metric).unit
                cell |= {
                    "runs": board.runs_of(row, column),
                    "number": unit.number(cell["value"]),
                    "interval": unit.interval(cell["low"], cell["high"]),
                    "share": f"{unit.share(cell['value']):.1f}",
                }
    return found


def _facets_of(board: Board, row: Row, about: Described) -> dict[str, str]:
    facets = {"Attention": about.attention, "Backbone": about.backbone, "Training": about.training}
    if about.adversarial is not None:
        facets["Adversarial"] = "yes" if about.adversarial else "no"
    sizes = [run.record.spec.model.parameters for run in board.runs_of_model(row.models[0]) if run.record]
    facets["Parameters"] = f"{float(f'{max(sizes) / 1e6:.1g}'):g} M" if sizes else None
    return {name: value for name, value in facets.items() if value is not None}


def _facets(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the values to choose from, of those facets that have several."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row["facets"].items():
            found.setdefault(name, []).append(value)
    return {name: sorted(set(values)) for name, values in found.items() if len(set(values)) > 1}


def _head(board: Board, column: Column) -> dict[str, Any]:
    metric = metric_for(column.metric)
    run = next((run for run in board.runs if run.record and run.evaluation in board.spec.needed(column)), None)
    citations = run.record.citations if run is not None and run.record is not None else ()
    return {
        "title": column.title,
        "heading": heading(board, column),
        "lower": metric.lower_is_better,
        "ranked": column.title == board.spec.rank_by,
        "what": unmarked(f"{metric.what} {explain(board, column)}".strip()),
        "cites": [match.groups() if (match := _ARXIV.fullmatch(one)) else (one, "") for one in citations],
    }


def _run(board: Board, number: int, run: Run, folder: Path | None) -> dict[str, Any]:
    protocol = ", ".join(filter(None, (run.evaluation.protocol, run.evaluation.replaced)))
    link = _link(run.record.path, folder) if run.record is not None else ""
    table = link.rpartition("/")[0] + "/" + run.record.outcomes_file.file if run.record is not None and link else ""
    words = _with_weights(run.record.command if run.record is not None else (), board.files.get(run.model))
    made = words[0] if len(words) == 1 else shlex.join(words)  # one item: a call from Python
    return {
        "number": number, "model": run.model, "protocol": protocol, "state": run.state,
        "link": link, "table": table.removeprefix("/"), "command": made or command(board.spec, [run], "runs"),
    }  # fmt: skip


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
