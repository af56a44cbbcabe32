"""The pages of one diagnosis, and of a comparison across models; needs no torch."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import require_marked, write_atomic
from robustbench_kpca._core.web import document as doc
from robustbench_kpca._core.web.write import write_page
from robustbench_kpca.study.diagnostics import figures, tables
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, Judged

Kind = Literal["model", "comparison"]
ACROSS = "The kernel-PCA claims across models"
STYLE = "tbody th { min-width: 11rem; }"
_LAYERS, _PROFILES = "layers.csv", "profiles.csv"
_STATISTICS = ("Statistic", "What", *tables.STATISTICS[2:])
_FINDINGS = ("Published statement", "Source", "Measured", "95 % interval", "Outcome")
_REASONS = ("Model", "Verdict", "Why")
_ACROSS = ("Model", *tables.STATISTICS[1:])
_INTRO = (
    "Protocol {procedure}: measured on {n} samples of {data} ({split}) in {layers} attention layers with {tokens} "
    "tokens and heads of width {width}; seed {seed}. Confidence intervals (95 %, Student's t) are over the samples. A "
    "claim is not testable if the model has no layer of the kind it describes, or if no test could distinguish it from "
    "chance. The limits of the verdicts are listed at the end; diagnostics/thresholds.py gives their reasons."
)


def require_own(folder: Path, kind: Kind) -> None:
    """Refuse to replace files that are not pages of this kind written by `rbk diagnose`."""
    why = "was not written by rbk diagnose as a page of this kind"
    require_marked((folder / doc.README, folder / doc.PAGE), _mark(kind), why)


def write_pages(diagnosis: Diagnosis, folder: Path) -> list[Path]:
    """Write pages and CSV files beside `diagnosis.json`, each atomically; return their paths."""
    written = _write(folder, "model", document(diagnosis))
    tables_of_numbers = {
        folder / _LAYERS: tables.layers_csv(diagnosis),
        folder / _PROFILES: tables.profiles_csv(diagnosis),
    }
    for path, text in tables_of_numbers.items():
        write_atomic(path, text.encode())
    return [*written, *tables_of_numbers]


def write_comparison(
    diagnoses: Sequence[Diagnosis],
    folder: Path,
    *,
    title: str = ACROSS,
    lead: Sequence[doc.Line] = (),
    foot: Sequence[doc.Line] = (),
) -> list[Path]:
    """Write README.md and index.html across models; return their paths.

    Args:
        title: of the page; lead: its first paragraphs; foot: its last ones.

    Raises:
        BadInputError: there are no diagnoses, or other files would be replaced.
    """
    if not diagnoses:
        raise BadInputError("no diagnoses to compare", fix="run: rbk diagnose MODEL -o FOLDER")
    return _write(folder, "comparison", comparison(by_name(diagnoses), title=title, lead=lead, foot=foot))


def by_name(diagnoses: Sequence[Diagnosis]) -> dict[str, Diagnosis]:
    """Map model names to diagnoses; repeated names get a number."""
    named: dict[str, Diagnosis] = {}
    for diagnosis in diagnoses:
        name, number = diagnosis.model.name, 2
        while name in named:
            name, number = f"{diagnosis.model.name} ({number})", number + 1
        named[name] = diagnosis
    return named


def document(diagnosis: Diagnosis) -> doc.Document:
    """Return the page of one model."""
    verdicts = [
        (doc.Link(judged.title, f"#{name}"), verdict(judged.outcome), judged.why)
        for name, judged in diagnosis.claims.items()
    ]
    blocks: list[doc.Block] = [
        doc.Paragraph(_counts(diagnosis.claims.values())),
        doc.Table(tables.VERDICTS, verdicts, "Verdicts"),
    ]
    for name, judged in diagnosis.claims.items():
        blocks += _claim(diagnosis, name, judged)
    if diagnosis.chance:
        number = tables.number
        rows = [(pair.pair, pair.statistic, number(pair.mean), number(pair.deviation)) for pair in diagnosis.chance]
        blocks.append(doc.Details("Similarity of unrelated matrices", [doc.Table(tables.CHANCE, rows)]))
    return doc.Document(
        _title(diagnosis), [*blocks, *_how_made(_intro(diagnosis), _provenance(diagnosis))], _mark("model"), STYLE
    )


def _claim(diagnosis: Diagnosis, name: str, judged: Judged) -> list[doc.Block]:
    """Return the section of a claim: its verdict and why, then its figures, with the numbers folded."""
    blocks: list[doc.Block] = [
        doc.Heading((f"{judged.title}: ", verdict(judged.outcome)), name),
        doc.Paragraph(f"{judged.why}."),
        doc.Paragraph(judged.source, soft=True),
    ]
    if not judged.statistics:
        return blocks
    blocks.append(doc.Figure(figures.by_layer(judged), "The main statistic of every head, by layer."))
    if profiles := figures.profiles(judged):
        blocks.append(doc.Figure(profiles, "Profiles: means over layers, heads and images."))
    nulls = [doc.Paragraph(f"By chance: {null}") for null in _nulls(judged)]
    blocks.append(doc.Details("Statistics", [doc.Table(_head(judged), _statistics(diagnosis, name)), *nulls]))
    if judged.findings:
        blocks.append(doc.Details("Published numbers", [doc.Table(_FINDINGS, _findings(judged))]))
    by_layer = [doc.Figure(svg, title.capitalize()) for title, svg in figures.profiles_by_layer(judged).items()]
    return [*blocks, doc.Details("By layer", [doc.Table(*tables.layer_matrix(judged)), *by_layer])]


def comparison(
    named: Mapping[str, Diagnosis],
    *,
    title: str = ACROSS,
    lead: Sequence[doc.Line] = (),
    foot: Sequence[doc.Line] = (),
) -> doc.Document:
    """Return the page across models, by the names of these; for the rest see `write_comparison`."""
    claims = _across(named)
    judged = [judged for diagnosis in named.values() for judged in diagnosis.claims.values()]
    verdicts: list[Sequence[doc.Line]] = [
        (doc.Link(claim["title"], f"#{claim['name']}"), *(verdict(v or "not measured") for v in claim["outcomes"]))
        for claim in claims
    ]
    means = "Means over heads and images; in brackets the chance level, or a control where a claim has no null model."
    blocks: list[doc.Block] = [
        *map(doc.Paragraph, lead),
        doc.Paragraph(_counts(judged)),
        doc.Table(("Claim", *map(doc.Code, named)), verdicts, "Verdicts: claims by models"),
        doc.Heading("The main statistic of each verdict"),
        doc.Figure(
            figures.across_models(named), "Mean and 95 % interval over images; the grey mark is the chance level."
        ),
        doc.Details("All statistics, by model", [doc.Table(*tables.model_matrix(named), means)]),
    ]
    if profiles := figures.profiles_across_models(named):
        blocks.append(doc.Details("Profiles", [doc.Figure(profiles, "Means over layers, heads and images.")]))
    for claim in claims:
        reasons = [(name, verdict(outcome), why) for name, outcome, why in claim["reasons"]]
        blocks += [
            doc.Heading(claim["title"], claim["name"]),
            doc.Table(_REASONS, reasons),
            doc.Paragraph(claim["source"], soft=True),
        ]
        if claim["rows"]:
            what = doc.Bullets([f"{name}: {text}" for name, text in claim["what"].items()])
            blocks.append(doc.Details("Statistics", [what, doc.Table(claim["head"], claim["rows"])]))
    provenance = [f"{name}: {line}" for name, diagnosis in named.items() for line in _provenance(diagnosis)]
    blocks += [*_how_made(_across_intro(named), provenance), *map(doc.Paragraph, foot)]
    return doc.Document(title, blocks, _mark("comparison"), STYLE)


def verdict(outcome: str) -> doc.Verdict:
    """Return an outcome in its colour."""
    return doc.Verdict(outcome, outcome.replace(" ", "-"))


def _counts(claims: Iterable[Judged]) -> doc.Line:
    words: list[doc.Word] = []
    for outcome, number in Counter(claim.outcome for claim in claims).most_common():
        words += ["; " if words else "", verdict(outcome), f": {number}"]
    return [*words, "."]


def _how_made(intro: str, provenance: Sequence[str]) -> list[doc.Block]:
    return [
        doc.Heading("How this page was made"),
        doc.Paragraph(intro),
        doc.Details("Data, limits, versions", [doc.Bullets(provenance)]),
    ]


def _across_intro(named: Mapping[str, Diagnosis]) -> str:
    """Describe which settings are the same for all models and which differ."""
    every = list(named.values())
    limits = {name for diagnosis in every for name in diagnosis.protocol.thresholds}
    values = {name: {diagnosis.protocol.thresholds.get(name) for diagnosis in every} for name in limits}
    changed = sorted(name for name in limits if len(values[name]) > 1)
    differ = {
        f"limits ({', '.join(changed)})": bool(changed),
        "data": len({diagnosis.data.digest for diagnosis in every}) > 1,
        "numbers of samples": len({diagnosis.protocol.images for diagnosis in every}) > 1,
        "protocols": len({diagnosis.protocol.procedure for diagnosis in every}) > 1,
        "block sizes": len({diagnosis.protocol.block for diagnosis in every}) > 1,
        "seeds": len({diagnosis.protocol.seed for diagnosis in every}) > 1,
        "layers": len({diagnosis.protocol.layers for diagnosis in every}) > 1,
    }
    differences = ", ".join(what for what, is_different in differ.items() if is_different)
    settings = f"NOT ALIKE: different {differences}" if differences else "Same limits, data, samples, blocks and seed"
    measured = dict.fromkeys(
        f"{_samples(diagnosis)} samples of {diagnosis.data.name} ({diagnosis.data.split})" for diagnosis in every
    )
    return f"Every claim by every model, on {'; '.join(measured)}. {settings}."


def _across(named: Mapping[str, Diagnosis]) -> list[dict[str, Any]]:
    claims = []
    for claim in dict.fromkeys(claim for diagnosis in named.values() for claim in diagnosis.claims):
        judged = {name: diagnosis.claims.get(claim) for name, diagnosis in named.items()}
        present = {name: judgement for name, judgement in judged.items() if judgement is not None}
        example = next(iter(present.values()))
        rows = [(name, *row[1:]) for name in present for row in tables.statistic_rows(named[name]) if row[0] == claim]
        measured = [statistic for judged in present.values() for statistic in judged.statistics.items()]
        columns = len(_ACROSS) if any(statistic.null is not None for _, statistic in measured) else 4
        claims.append(
            {
                "name": claim,
                "title": example.title,
                "source": example.source,
                "head": _ACROSS[:columns],
                "rows": [row[:columns] for row in _grouped(rows, list(example.statistics))],
                "what": {name: statistic.what for name, statistic in measured},
                "outcomes": [None if judgement is None else judgement.outcome for judgement in judged.values()],
                "reasons": [(name, judgement.outcome, judgement.why) for name, judgement in present.items()],
            }
        )
    return claims


def _grouped(rows: Sequence[tables.Row], order: Sequence[str]) -> list[tables.Row]:
    """Sort rows by statistic, in the order of the claim."""
    places = {name: place for place, name in enumerate(order)}
    return sorted(rows, key=lambda row: places.get(row[1], len(places)))


def _statistics(diagnosis: Diagnosis, claim: str) -> list[tables.Row]:
    what = {name: measured.what for name, measured in diagnosis.claims[claim].statistics.items()}
    rows = [row[1:] for row in tables.statistic_rows(diagnosis) if row[0] == claim]
    columns = len(_head(diagnosis.claims[claim]))
    return [(row[0], what[row[0]], *row[1:])[:columns] for row in rows]


def _head(judged: Judged) -> tables.Row:
    """Return the columns of a claim's table, with those about chance only if a statistic has a null model."""
    return _STATISTICS if _nulls(judged) else _STATISTICS[:4]


def _nulls(judged: Judged) -> list[str]:
    """Return the descriptions of a claim's null models, without repetition, with their numbers of draws."""
    nulls = [measured.null for measured in judged.statistics.values() if measured.null is not None]
    return list(dict.fromkeys(f"{null.what.rstrip('.')} ({null.draws} draws)." for null in nulls))


def _findings(judged: Judged) -> list[tables.Row]:
    number, interval = tables.number, tables.interval
    return [
        (finding.statement, finding.source, number(finding.measured.value), interval(finding.measured), finding.outcome)
        for finding in judged.findings
    ]


def _title(diagnosis: Diagnosis) -> str:
    return f"The kernel-PCA claims on {diagnosis.model.name}"


def _intro(diagnosis: Diagnosis) -> str:
    layers = diagnosis.layers

    def spread(values: Sequence[int]) -> str:
        return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"

    return _INTRO.format(
        procedure=diagnosis.protocol.procedure,
        n=_samples(diagnosis),
        data=diagnosis.data.name,
        split=diagnosis.data.split,
        layers=len(layers),
        tokens=spread([count for layer in layers for count in layer.tokens]),
        width=spread([layer.width for layer in layers]),
        seed=diagnosis.protocol.seed,
    )


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


def _write(folder: Path, kind: Kind, page: doc.Document) -> list[Path]:
    require_own(folder, kind)
    return write_page(page, folder)
