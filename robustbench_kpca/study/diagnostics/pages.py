"""Markdown and self-contained HTML pages of one diagnosis, and of a comparison across models; needs no torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from tabulate import tabulate

from robustbench_kpca._core.errors import BadInputError, printable
from robustbench_kpca._core.files import require_marked, write_atomic
from robustbench_kpca._core.web import render
from robustbench_kpca.records.record import Record
from robustbench_kpca.study.diagnostics import csvs, epochs, figures, tables
from robustbench_kpca.study.diagnostics.ablation import COLUMNS, contrasts, without_identity
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, Judged
from robustbench_kpca.study.diagnostics.epochs import Trajectory

Kind = Literal["model", "comparison"]
ACROSS = "The kernel-PCA claims across models"
_README, _PAGE = "README.md", "index.html"
_LAYERS, _PROFILES = "layers.csv", "profiles.csv"
_STATISTICS = ("Statistic", "What", *tables.STATISTICS[2:])
_FINDINGS = ("Published statement", "Source", "Measured", "95 % interval", "Outcome")
_REASONS = ("Model", "Verdict", "Why")
_MISSING = ("Model", "Why")
_ACROSS = ("Model", *tables.STATISTICS[1:])
_INTRO = (
    "Protocol {procedure}: measured on {n} samples of {data} ({split}) in {layers} attention layers with {tokens} "
    "tokens and heads of width {width}; seed {seed}. Confidence intervals (95 %, Student's t) are over the samples. A "
    "claim is not testable if the model has no layer of the kind it describes, or if no test could distinguish it from "
    "chance. The limits of the verdicts are listed at the end; diagnostics/thresholds.py gives their reasons."
)
_ABLATION = (
    "Accuracies or mIoU (%) of RPC models and their twins under the same protocol on the same images. A twin has "
    "identity attention in the same layers, or no pursuit. Only the difference from the identity twin is an effect of "
    "the pursuit. p: paired tests (McNemar exact, sign flips or bootstrap), adjusted by Holm over the table. One pair "
    "compares two networks, not two kinds of attention: that needs several training seeds."
)


@dataclass(frozen=True)
class Comparison:
    """What the pages across models show.

    Attributes:
        named: diagnoses by the names of their models.
        ablation: what the pursuit adds, one row a model and protocol; note: what is said above it.
        missing: models that were not run, and why.
        title: of the page; lead: its first paragraphs, as plain text.

    """

    named: Mapping[str, Diagnosis]
    ablation: Sequence[tables.Row] = ()
    note: str = _ABLATION
    missing: Sequence[tables.Row] = ()
    title: str = ACROSS
    lead: Sequence[str] = ()


def require_own(folder: Path, kind: Kind) -> None:
    """Refuse to replace files that are not pages of this kind written by `rbk diagnose`.

    Raises:
        BadInputError: the folder holds such a file, or a file cannot be read.

    """
    why = "was not written by rbk diagnose as a page of this kind"
    require_marked((folder / _README, folder / _PAGE), _mark(kind), why)


def write_pages(diagnosis: Diagnosis, folder: Path) -> list[Path]:
    """Write pages and CSV files beside `diagnosis.json`, each atomically; return their paths."""
    written = _write(folder, "model", markdown(diagnosis), html(diagnosis))
    tables_of_numbers = {folder / _LAYERS: csvs.layers(diagnosis), folder / _PROFILES: csvs.profiles(diagnosis)}
    for path, text in tables_of_numbers.items():
        write_atomic(path, text.encode())
    return [*written, *tables_of_numbers]


def write_comparison(
    diagnoses: Sequence[Diagnosis],
    folder: Path,
    records: Sequence[Record] = (),
    missing: Mapping[str, str] | None = None,
    title: str = ACROSS,
    lead: Sequence[str] = (),
) -> list[Path]:
    """Write README.md and index.html across models; return their paths.

    Args:
        diagnoses: one per model.
        folder: where to write.
        records: records of evaluations, for the ablation.
        missing: models that were not run, and why.
        title: of the page.
        lead: its first paragraphs, as plain text.

    Raises:
        BadInputError: there are no diagnoses, or other files would be replaced.

    """
    if not diagnoses:
        raise BadInputError("no diagnoses to compare", fix="run: rbk diagnose MODEL -o FOLDER")
    alone = without_identity(records)
    shown = Comparison(
        by_name(diagnoses),
        ablation=[contrast.row() for contrast in contrasts(records)],
        note=f"{_ABLATION} No record of an identity twin for: {', '.join(alone)}." if alone else _ABLATION,
        missing=list((missing or {}).items()),
        title=title,
        lead=lead,
    )
    return _write(folder, "comparison", comparison_markdown(shown), comparison_html(shown))


def write_trajectory(found: Trajectory, folder: Path) -> list[Path]:
    """Write trajectory.json, trajectory.csv and trajectory.svg, each atomically; return their paths."""
    texts = {folder / epochs.TABLE: found.csv(), folder / epochs.FIGURE: figures.trajectory(found)}
    for path, text in texts.items():
        write_atomic(path, text.encode())
    return [found.save(folder), *texts]


def by_name(diagnoses: Sequence[Diagnosis]) -> dict[str, Diagnosis]:
    """Map model names to diagnoses; repeated names get a number."""
    named: dict[str, Diagnosis] = {}
    for one in diagnoses:
        name, number = one.model.name, 2
        while name in named:
            name, number = f"{one.model.name} ({number})", number + 1
        named[name] = one
    return named


def markdown(diagnosis: Diagnosis) -> str:
    """Render the page of one model as GitHub-flavoured markdown, without figures."""
    parts = [f"# {_md(_title(diagnosis))}", _md(_intro(diagnosis)), "## Verdicts"]
    parts.append(_table(tables.VERDICTS, tables.verdict_rows(diagnosis)))
    for name, judged in diagnosis.claims.items():
        parts += [f"## {_md(judged.title)}: {judged.outcome}", _md(judged.source), f"{_md(judged.why)}."]
        if judged.statistics:
            parts.append(_table(_head(judged), _statistics(diagnosis, name)))
        parts += [f"By chance: {_md(null)}" for null in _nulls(judged)]
        if judged.findings:
            parts.append(_table(_FINDINGS, _findings(judged)))
    if diagnosis.chance:
        parts += ["## Similarity of unrelated matrices", _table(tables.CHANCE, tables.chance_rows(diagnosis))]
    return _joined(parts, _provenance(diagnosis))


def html(diagnosis: Diagnosis) -> str:
    """Render the HTML page of one model; it loads nothing from elsewhere."""
    claims = [
        {
            "name": name, "judged": judged, "head": _head(judged), "rows": _statistics(diagnosis, name),
            "nulls": _nulls(judged), "findings": _findings(judged), "by_layer": tables.layer_matrix(judged),
            "layers": figures.by_layer(judged), "profiles": figures.profiles(judged),
            "profiles_by_layer": figures.profiles_by_layer(judged),
        }
        for name, judged in diagnosis.claims.items()
    ]  # fmt: skip
    return render(
        "diagnosis.html.j2", "study.diagnostics", title=_title(diagnosis), intro=_intro(diagnosis), claims=claims,
        totals=Counter(one.outcome for one in diagnosis.claims.values()).most_common(),
        findings_head=_FINDINGS, chance_head=tables.CHANCE,
        chance=tables.chance_rows(diagnosis), provenance=_provenance(diagnosis),
    )  # fmt: skip


def comparison_markdown(shown: Comparison) -> str:
    """Render the page across models as markdown."""
    named = shown.named
    claims = _across(named)
    parts = [f"# {_md(shown.title)}", *map(_md, shown.lead), _md(_across_intro(named)), "## Verdicts"]
    rows = [(claim["title"], *(outcome or "not measured" for outcome in claim["outcomes"])) for claim in claims]
    parts += [_table(("Claim", *named), rows), "## Statistics (chance)", _table(*tables.model_matrix(named))]
    for claim in claims:
        parts += [f"## {_md(claim['title'])}", _md(claim["source"]), _table(_REASONS, claim["reasons"])]
        if claim["rows"]:
            parts.append("\n".join(f"- {_md(name)}: {_md(what)}" for name, what in claim["what"].items()))
            parts.append(_table(claim["head"], claim["rows"]))
    if shown.ablation:
        parts += ["## What the pursuit adds", _md(shown.note), _table(COLUMNS, shown.ablation)]
    if shown.missing:
        parts += ["## Not run", _table(_MISSING, shown.missing)]
    return _joined(parts, [f"{name}: {line}" for name, one in named.items() for line in _provenance(one)])


def comparison_html(shown: Comparison) -> str:
    """Render the HTML page across models; it loads nothing from elsewhere."""
    named = shown.named
    return render(
        "comparison.html.j2", "study.diagnostics", title=shown.title, lead=shown.lead, names=list(named),
        claims=_across(named), intro=_across_intro(named),
        totals=Counter(judged.outcome for one in named.values() for judged in one.claims.values()).most_common(),
        matrix=tables.model_matrix(named), figure=figures.across_models(named),
        profiles=figures.profiles_across_models(named),
        reasons_head=_REASONS, ablation=shown.ablation, ablation_head=COLUMNS,
        ablation_note=shown.note, missing=shown.missing, missing_head=_MISSING,
        provenance=[f"{name}: {line}" for name, one in named.items() for line in _provenance(one)],
    )  # fmt: skip


def _across_intro(named: Mapping[str, Diagnosis]) -> str:
    """Describe which settings are the same for all models and which differ."""
    every = list(named.values())
    limits = {name for one in every for name in one.protocol.thresholds}
    apart = sorted(name for name in limits if len({one.protocol.thresholds.get(name) for one in every}) > 1)
    differ = {
        f"limits ({', '.join(apart)})": bool(apart),
        "data": len({one.data.digest for one in every}) > 1,
        "numbers of samples": len({one.protocol.images for one in every}) > 1,
        "protocols": len({one.protocol.procedure for one in every}) > 1,
        "block sizes": len({one.protocol.block for one in every}) > 1,
        "seeds": len({one.protocol.seed for one in every}) > 1,
        "layers or heads": len({(one.protocol.layers, one.protocol.heads) for one in every}) > 1,
    }
    found = [what for what, there in differ.items() if there]
    alike = f"NOT ALIKE: different {', '.join(found)}" if found else "Same limits, data, samples, blocks and seed"
    measured = dict.fromkeys(f"{_samples(one)} samples of {one.data.name} ({one.data.split})" for one in every)
    return f"Every claim by every model, on {'; '.join(measured)}. {alike}."


def _across(named: Mapping[str, Diagnosis]) -> list[dict[str, Any]]:
    found = []
    for claim in dict.fromkeys(claim for one in named.values() for claim in one.claims):
        judged = {name: one.claims.get(claim) for name, one in named.items()}
        there = {name: one for name, one in judged.items() if one is not None}
        some = next(iter(there.values()))
        rows = [(name, *row[1:]) for name in there for row in tables.statistic_rows(named[name]) if row[0] == claim]
        measured = [one for judged in there.values() for one in judged.statistics.items()]
        shown = len(_ACROSS) if any(one.null is not None for _, one in measured) else 4
        found.append(
            {
                "name": claim, "title": some.title, "source": some.source, "head": _ACROSS[:shown],
                "rows": [row[:shown] for row in _grouped(rows, list(some.statistics))],
                "what": {name: one.what for name, one in measured},
                "outcomes": [None if one is None else one.outcome for one in judged.values()],
                "reasons": [(name, one.outcome, one.why) for name, one in there.items()],
            }
        )  # fmt: skip
    return found


def _grouped(rows: Sequence[tables.Row], order: Sequence[str]) -> list[tables.Row]:
    """Sort rows by statistic, in the order of the claim."""
    places = {name: place for place, name in enumerate(order)}
    return sorted(rows, key=lambda row: places.get(row[1], len(places)))


def _statistics(diagnosis: Diagnosis, claim: str) -> list[tables.Row]:
    what = {name: measured.what for name, measured in diagnosis.claims[claim].statistics.items()}
    rows = [row[1:] for row in tables.statistic_rows(diagnosis) if row[0] == claim]
    shown = len(_head(diagnosis.claims[claim]))
    return [(row[0], what[row[0]], *row[1:])[:shown] for row in rows]


def _head(judged: Judged) -> tables.Row:
    """Return the columns of a claim's table, with those about chance only if a statistic has a null model."""
    return _STATISTICS if _nulls(judged) else _STATISTICS[:4]


def _nulls(judged: Judged) -> list[str]:
    """Return the descriptions of a claim's null models, without repetition, with their numbers of draws."""
    nulls = [measured.null for measured in judged.statistics.values() if measured.null is not None]
    return list(dict.fromkeys(f"{null.what.rstrip('.')} ({null.draws} draws)." for null in nulls))


def _findings(judged: Judged) -> list[tables.Row]:
    number = tables.number
    return [
        (one.statement, one.source, number(one.measured.value),
         tables.interval(one.measured), one.outcome)
        for one in judged.findings
    ]  # fmt: skip


def _title(diagnosis: Diagnosis) -> str:
    return f"The kernel-PCA claims on {diagnosis.model.name}"


def _intro(diagnosis: Diagnosis) -> str:
    layers = diagnosis.layers

    def spread(values: Sequence[int]) -> str:
        return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"

    return _INTRO.format(
        procedure=diagnosis.protocol.procedure, n=_samples(diagnosis), data=diagnosis.data.name,
        split=diagnosis.data.split, layers=len(layers),
        tokens=spread([count for layer in layers for count in layer.tokens]),
        width=spread([layer.width for layer in layers]), seed=diagnosis.protocol.seed,
    )  # fmt: skip


def _samples(diagnosis: Diagnosis) -> str:
    """Return the number of samples; all numbers if claims differ."""
    numbers = sorted(set(diagnosis.protocol.images_of.values()) or {diagnosis.protocol.images}, reverse=True)
    return " or ".join(str(number) for number in numbers)


def _provenance(diagnosis: Diagnosis) -> list[str]:
    where, model, protocol = diagnosis.environment, diagnosis.model, diagnosis.protocol
    versions = f"torch {where.packages.get('torch', 'unknown')}, revision {where.revision or 'unknown'}"
    limits = ", ".join(f"{name} {value:g}" for name, value in protocol.thresholds.items())
    return [
        f"Model: {model.source}; {model.parameters:,} parameters, SHA-256 {model.parameters_sha256[:16]}.",
        f"Data: {diagnosis.data.name}, {diagnosis.data.split}, digest {diagnosis.data.digest[:16]}.",
        f"Protocol: {protocol.procedure}, digest {diagnosis.protocol_digest[:16]}, blocks of {protocol.block} samples.",
        f"Limits: {limits}.",
        f"Made {diagnosis.created} in {diagnosis.seconds:.0f} s on {where.processor} ({where.device}); {versions}.",
    ]


def _mark(kind: Kind) -> str:
    """Return the comment that marks a page as written by `rbk diagnose`."""
    return f"<!-- rbk diagnose: {kind} -->"


def _write(folder: Path, kind: Kind, readme: str, page: str) -> list[Path]:
    require_own(folder, kind)
    pages = {folder / _README: f"{readme}\n{_mark(kind)}\n", folder / _PAGE: f"{page}\n{_mark(kind)}\n"}
    for path, text in pages.items():
        write_atomic(path, text.encode())
    return list(pages)


def _joined(parts: Sequence[str], provenance: Sequence[str]) -> str:
    lines = [*parts, "## How this page was made", "\n".join(f"- {_md(line)}" for line in provenance)]
    return "\n\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[_md(cell) for cell in row] for row in rows]
    text: str = tabulate(cells, [_md(title) for title in head], tablefmt="github", disable_numparse=True)
    return text


def _md(text: str) -> str:
    """Escape markdown, so that norms are not read as cell borders nor powers as emphasis."""
    escaped = escape(text, quote=False)
    for sign in ("\\", "|", "*", "_", "`", "["):
        escaped = escaped.replace(sign, f"\\{sign}")
    return printable(" ".join(escaped.split()))
