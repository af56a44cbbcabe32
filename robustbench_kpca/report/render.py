"""A board as GitHub-flavoured markdown and as one self-contained HTML page."""

from html import escape
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import write_atomic
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report.board import ALPHA, Board
from robustbench_kpca.report.corruption_figures import corruption_figures
from robustbench_kpca.report.explain import explain, provenance, samples, values_of
from robustbench_kpca.report.plots import against_eps, eps_panels
from robustbench_kpca.report.table import (
    audit_lines,
    audit_summary,
    cells,
    frame,
    heading,
    single_heads,
    single_trainings,
)

_CAPTION = (
    "{values} of {samples}, with 95 % intervals (Wilson for proportions, bootstrap over "
    "images for everything else); seed {spec.seed}. Sorted by {spec.rank_by}; ↓: lower is better. Bold: better than "
    "every other model in that column by a paired test on the same images (McNemar exact, sign flips or bootstrap, "
    "Holm-adjusted, p < {alpha}); no bold, no clear winner."
)
_TRAININGS = (
    "A row of several trainings shows their mean and a 95 % interval over trainings and images, and is bold by a "
    "t-test over trainings; (1 of 3): the number of trainings that were evaluated."
)


def markdown(board: Board) -> str:
    """Render README.md."""
    spec = board.spec
    single = single_trainings(board)
    missing = sum(run.record is None for run in board.runs)
    lines = [
        f"# {spec.title}",
        "",
        spec.intro.strip(),
        "",
        frame(board).to_markdown(index=False, disable_numparse=True),
        "",
        _CAPTION.format(values=values_of(board), samples=samples(board), spec=spec, alpha=ALPHA),
    ]
    lines += ["", _TRAININGS] if single else []
    if missing:
        lines += ["", f"{missing} of {len(board.runs)} runs are missing: `{board.missing}`."]
    if single:
        table = pd.DataFrame(single, columns=single_heads(board))
        lines += ["", "## Single trainings", "", table.to_markdown(index=False, disable_numparse=True)]
    lines += ["", *_audit_section(board), *_flag_lines(board), "## Columns", ""]
    lines += [f"- **{column.title}**: {explain(board, column)}" for column in spec.column]
    lines += ["", "## How this page was made", "", *provenance(board), ""]
    return "\n".join(lines)


def html(board: Board) -> str:
    """Render index.html: sortable, filterable, no request to anywhere."""
    environment = Environment(
        loader=PackageLoader("robustbench_kpca.report"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("board.html.j2").render(
        board=board,
        spec=board.spec,
        intro=_plain(board.spec.intro),
        rows=cells(board),
        audit=audit_lines(board),
        audited=audit_summary(board),
        alpha=ALPHA,
        values=values_of(board),
        units=[metric_for(column.metric).unit for column in board.spec.column],
        samples=_plain(samples(board)),
        trainings=_TRAININGS,
        single=single_trainings(board),
        single_heads=single_heads(board),
        headings=[heading(board, column) for column in board.spec.column],
        lower=[metric_for(column.metric).lower_is_better for column in board.spec.column],
        explanations=[(column.title, _plain(explain(board, column))) for column in board.spec.column],
        provenance=[_plain(line.removeprefix("- ")) for line in provenance(board)],
        attacked=" and ".join(dict.fromkeys(panel.metric.title for panel in eps_panels(board).values())),
        figure=against_eps(board),
        corruptions=corruption_figures(board),
    )


def write_board(board: Board, folder: Path) -> list[Path]:
    """Write README.md and index.html, each whole or not at all.

    Raises:
        BadInputError: no record fills any cell.

    """
    if not any(run.record for run in board.runs):
        raise BadInputError(f"board '{board.name}' has no records", fix=f"see: {board.missing}")
    pages = {folder / "README.md": markdown(board), folder / "index.html": html(board)}
    for path, text in pages.items():
        write_atomic(path, text.encode())
    return list(pages)


def _plain(text: str) -> str:
    return text.replace("`", "")


def _audit_section(board: Board) -> list[str]:
    found = audit_lines(board)
    lines = [f"- {mark} {escape(models, quote=False)}: {escape(text, quote=False)}" for mark, models, text in found]
    return ["## Audit", "", *(lines or [audit_summary(board)]), ""]


def _flag_lines(board: Board) -> list[str]:
    flagged = [
        f"- `{run.model}` under `{run.evaluation.protocol}`: {flag}"
        for run in board.runs
        if run.record
        for flag in run.record.flags
    ]
    return ["## Flags", "", *flagged, ""] if flagged else []
