"""A board as GitHub-flavoured markdown and as one self-contained HTML page."""

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import write_atomic
from robustbench_kpca.metrics import Unit, common_unit, metric_for
from robustbench_kpca.protocols.scenario import Attack, Corruption, Inference, parse_scenario
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board import ALPHA, Board
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.corruption_figures import corruption_figures
from robustbench_kpca.report.plots import against_eps, eps_panels

MISSING = "—"
FLAGGED, UNAUDITED = "⚠", "○"  # beside a model's name
_CAPTION = (
    "{values} of {n} `{spec.data}` images ({spec.split}), with 95 % intervals (Wilson for proportions, bootstrap over "
    "images for everything else); seed {spec.seed}. Sorted by {spec.rank_by}; ↓: lower is better. Bold: better than "
    "every other model in that column by a paired test on the same images (McNemar exact, sign flips or bootstrap, "
    "Holm-adjusted, p < {alpha}); no bold, no clear winner."
)


_AUDITED = "Every model that is attacked here was audited for masked gradients, and no flag was raised."
_NOTHING = "No attack was evaluated, so there was nothing to audit."


def spell(estimate: Estimate, unit: Unit) -> str:
    """Write an estimate as `93.4 [90.9, 95.3]`: the value and its 95 % interval."""
    return f"{unit.number(estimate.value)} {unit.interval(estimate.low, estimate.high)}"


def board_unit(board: Board) -> Unit | None:
    """Return the unit of all columns, or None where they have different ones: then headings name them."""
    return common_unit(metric_for(column.metric).unit for column in board.spec.column)


def cells(board: Board) -> list[dict[str, Any]]:
    """One row per model: its name and, per column, value, interval, text and whether it is the clear winner."""
    rows = []
    for rank, model in enumerate(board.ranked(), start=1):
        row: dict[str, Any] = {"rank": rank, "model": model, "marks": list(audit_marks(board, model)), "columns": []}
        for column in board.spec.column:
            estimate = board.estimate(model, column)
            row["columns"].append(
                {
                    "text": MISSING if estimate is None else spell(estimate, metric_for(column.metric).unit),
                    "value": None if estimate is None else estimate.value,
                    "low": None if estimate is None else estimate.low,
                    "high": None if estimate is None else estimate.high,
                    "flags": [flag for record in board.records(model, column) for flag in record.flags],
                    "best": board.clear_winner(column) == model,
                }
            )
        rows.append(row)
    return rows


def audit_marks(board: Board, model: str) -> dict[str, list[str]]:
    """Mark -> what it stands for here: the flags of the model's audits, and records of attacks without audit."""
    audits = board.audits(model)
    flags = [
        " ".join(f"{check.name}: {check.saw} ({check.why})".split())
        for audit in audits
        if audit is not None
        for check in audit.flags
    ]
    marks = {FLAGGED: flags} if flags else {}
    return marks | ({UNAUDITED: ["not audited"]} if None in audits else {})


def audit_lines(board: Board) -> list[tuple[str, str, str]]:
    """Explain every mark: the mark, the model or models, and what the audit found."""
    marks = {model: audit_marks(board, model) for model in board.spec.models}
    lines = [(FLAGGED, model, flag) for model, found in marks.items() for flag in found.get(FLAGGED, [])]
    if without := [model for model, found in marks.items() if UNAUDITED in found]:
        lines.append((UNAUDITED, ", ".join(without), "not audited, in part or at all"))
    return lines


def audit_summary(board: Board) -> str:
    """Return the sentence that stands in place of marks where there are none."""
    return _AUDITED if any(board.audits(model) for model in board.spec.models) else _NOTHING


def heading(board: Board, column: Column) -> str:
    """Return a column's title, with its unit where columns have different ones, and an arrow where lower is better."""
    metric = metric_for(column.metric)
    title = column.title if board_unit(board) else metric.unit.label(column.title)
    return f"{title} ↓" if metric.lower_is_better else title


def frame(board: Board) -> pd.DataFrame:
    """Return the board as a table of text; the best value is bold only where it is a clear winner."""
    table = [
        {"#": row["rank"], "Model": " ".join([row["model"], *row["marks"]])}
        | {
            heading(board, column): f"**{cell['text']}**" if cell["best"] else cell["text"]
            for column, cell in zip(board.spec.column, row["columns"], strict=True)
        }
        for row in cells(board)
    ]
    return pd.DataFrame(table)


def markdown(board: Board) -> str:
    """Render README.md."""
    spec = board.spec
    numbers = next((run.record.spec.data.n for run in board.runs if run.record), 0)
    missing = sum(run.record is None for run in board.runs)
    lines = [
        f"# {spec.title}",
        "",
        spec.intro.strip(),
        "",
        frame(board).to_markdown(index=False, disable_numparse=True),
        "",
        _CAPTION.format(values=_values(board), n=numbers, spec=spec, alpha=ALPHA),
    ]
    if missing:
        lines += ["", f"{missing} of {len(board.runs)} runs are missing: `rbk plan {board.name}`."]
    lines += ["", *_audit_section(board), *_flag_lines(board), "## Columns", ""]
    lines += [f"- **{column.title}**: {_explain(board, column)}" for column in spec.column]
    lines += ["", "## How this page was made", "", *_provenance(board), ""]
    return "\n".join(lines)


def html(board: Board) -> str:
    """Render index.html: sortable, filterable, no request to anywhere."""
    environment = Environment(
        loader=PackageLoader("robustbench_kpca.report"), autoescape=True, undefined=StrictUndefined
    )
    records = [run.record for run in board.runs if run.record]
    return environment.get_template("board.html.j2").render(
        board=board,
        spec=board.spec,
        intro=_plain(board.spec.intro),
        rows=cells(board),
        audit=audit_lines(board),
        audited=audit_summary(board),
        alpha=ALPHA,
        values=_values(board),
        units=[metric_for(column.metric).unit for column in board.spec.column],
        n=records[0].spec.data.n if records else 0,
        headings=[heading(board, column) for column in board.spec.column],
        lower=[metric_for(column.metric).lower_is_better for column in board.spec.column],
        explanations=[(column.title, _plain(_explain(board, column))) for column in board.spec.column],
        provenance=[_plain(line.removeprefix("- ")) for line in _provenance(board)],
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
        raise BadInputError(f"board '{board.name}' has no records", fix=f"see: rbk plan {board.name}")
    pages = {folder / "README.md": markdown(board), folder / "index.html": html(board)}
    for path, text in pages.items():
        write_atomic(path, text.encode())
    return list(pages)


def _values(board: Board) -> str:
    """Name what the table shows."""
    unit = board_unit(board)
    return unit.name.capitalize() if unit and unit.name else "Values"


def _plain(text: str) -> str:
    return text.replace("`", "")


def _explain(board: Board, column: Column) -> str:
    metric = metric_for(column.metric)
    notes = [f"`{metric.name}`, {metric.title}"]
    if column.reference is not None:
        instead = "" if metric.needs_reference else ", not AlexNet's"
        notes.append(f"divided by the errors of `{column.reference}` (taken as exact){instead}")
    if column.against is not None:
        notes.append(f"against `{column.against}`")
    records = [record for model in board.spec.models for record in board.records(model, column)]
    if metric.chance is not None and records:
        notes.append(f"chance {metric.unit.number(metric.chance(records[0].outcomes))}")
    what = f"{'; '.join(notes)}: "
    if isinstance(column.protocol, str):
        return what + _explain_protocol(board, column.protocol)
    return what + f"the worst case, image by image, of {', '.join(f'`{name}`' for name in column.protocol)}"


def _explain_protocol(board: Board, protocol: str) -> str:
    record = next((run.record for run in board.runs if run.protocol == protocol and run.record), None)
    if record is None:
        return f"`{protocol}` (no record)"
    scenario = parse_scenario(dict(record.spec.protocol.resolved), protocol)
    text = f"{scenario.title} (`{protocol}`, digest {record.spec.protocol.digest[:12]})"
    if isinstance(scenario, Attack):
        stages = "; ".join(
            f"{stage.attack} " + ", ".join(f"{key} = {value}" for key, value in stage.options.items())
            for stage in scenario.stage
        )
        text += f"; {_budget(scenario, record.spec.model.pixel_std)}{'; ' if stages else ''}{stages.strip()}"
    inference = getattr(scenario, "inference", None)
    if inference is not None:
        text += f"; {_windows(inference)}"
    if isinstance(scenario, Corruption):
        text += f"; pictures {scenario.made}, profile {scenario.profile}, mode {scenario.mode}, frost {scenario.frost}"
    return text


def _windows(inference: Inference) -> str:
    """Describe the windows in which images are shown to a model."""
    side = f"windows of {inference.window} px" if inference.window else "windows of the model's own size"
    parts = [side, f"stride {inference.stride}" if inference.stride else "side by side"]
    parts += ["short side resized to a window's"] if inference.resize == "short-side" else []
    parts += [f"scales {', '.join(f'{scale:g}' for scale in inference.scales)}"] if inference.scales != (1.0,) else []
    return ", ".join([*parts, "mirrored, too"] if inference.flip else parts)


def _budget(scenario: Attack, std: tuple[float, ...]) -> str:
    """Write eps in the protocol's space and, if the model's normalisation is known, in the other one."""
    text = f"{scenario.threat} in {scenario.space} space"
    if not std:
        return text
    pixel = scenario.space == "pixel"
    values = sorted({scenario.eps / part if pixel else scenario.eps * part for part in std})
    ends = dict.fromkeys((values[0], values[-1]))
    levels = not pixel and scenario.norm != "l1" and values[-1] <= 1
    shown = " to ".join(f"{255 * value:.3g}/255" if levels else f"{value:.3g}" for value in ends)
    return f"{text}, {shown} in {'normalised' if pixel else 'pixel'} space, by channel"


def _audit_section(board: Board) -> list[str]:
    found = audit_lines(board)
    lines = [f"- {mark} {escape(models, quote=False)}: {escape(text, quote=False)}" for mark, models, text in found]
    return ["## Audit", "", *(lines or [audit_summary(board)]), ""]


def _flag_lines(board: Board) -> list[str]:
    flagged = [
        f"- `{run.model}` under `{run.protocol}`: {flag}"
        for run in board.runs
        if run.record
        for flag in run.record.flags
    ]
    return ["## Flags", "", *flagged, ""] if flagged else []


def _provenance(board: Board) -> list[str]:
    records: list[Record] = [run.record for run in board.runs if run.record]
    if not records:
        return ["- no records yet"]

    def distinct(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    where = [record.environment for record in records]
    data = distinct(record.spec.data.digest[:16] for record in records)
    batch = distinct(record.spec.batch_size for record in records)
    torch, timm = (distinct(environment.packages[name] for environment in where) for name in ("torch", "timm"))
    processor = distinct(environment.processor for environment in where)
    device = distinct(environment.device for environment in where)
    forwards, backwards = (
        sum(getattr(record.passes, kind) for record in records) for kind in ("forwards", "backwards")
    )
    seconds = sum(record.seconds for record in records)
    return [
        f"- Command: `rbk leaderboard {board.name}`, from {len(records)} records; each record names its revision.",
        f"- Data digest: {data}; batch size {batch}.",
        f"- Processor: {processor}; device {device}; torch {torch}; timm {timm}.",
        f"- Passes: {forwards:,} forward, {backwards:,} backward; {seconds:.0f} s in all.",
    ]
