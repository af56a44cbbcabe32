"""The page of a paper's statements beside what was measured here; its verdicts are computed when it is written."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from robustbench_kpca._core.web import document as doc
from robustbench_kpca._core.web.write import write_page
from robustbench_kpca.study.reproduction.evidence import Answer, Results, Verdict, answer
from robustbench_kpca.study.reproduction.pages import ALL, STATEMENTS
from robustbench_kpca.study.reproduction.statements import Statements

HEADS = ("Where", "The paper says", "Verdict", "Measured on", "Gain or value [interval]", "From")
CLASSES = {
    Verdict.agrees: "supported",
    Verdict.differs: "not-supported",
    Verdict.undecided: "not-testable",
    Verdict.missing: "not-measured",
}
STYLE = (
    "td { min-width: 8rem; } td:nth-child(2), td:nth-child(5), td:nth-child(6) { min-width: 15rem; } "
    "@media (max-width: 70rem) { thead { display: none; } tr, th, td { display: block; } "
    "tr { border-bottom: 1px solid var(--line); } td, tbody tr > .pin { border: 0; position: static; } "
    "td:empty, th:empty { display: none; } .frame { max-height: none; } }"
)
RULES = (
    "The first row of a comparison is the one that the paper says is better; a gain above zero is for the better, "
    "also in columns where lower is better. Intervals are of 95 %, over the same samples, and over trainings where a "
    "row has several; of k columns, each has the confidence 1 − 0.05/k, so that all hold at once with 95 %. A row "
    "without a number of trainings is a single network, and the verdict is about that network. Agrees: the whole "
    "interval is inside what the paper says (above zero, or above its margin). Does not agree: it is outside, in one "
    "column at least. Not testable at this size: neither, or one training out of several, or images that are pieces "
    "of few pictures. A column in which both rows are near nothing can show no margin. Claims about kernel PCA have "
    "the verdict of their diagnosis, with its null, and no interval unless one is shown. A course over epochs agrees "
    "where the number has moved as the paper says in every layer; it is of one training, without an interval. "
    "Verdicts are not adjusted for each other, so where a method changes nothing, about one comparison in twenty "
    "still has a verdict by chance. Most models here are far smaller than the paper's: a verdict is about the models "
    "that it names."
)


def write_statements(statements: Statements, results: Results) -> Path:
    """Write README.md and index.html into the folder `statements` of a pack's results; return the former's path."""
    folder = results.roles.out / STATEMENTS
    return write_page(document(statements, results), folder)[0]


def document(statements: Statements, results: Results) -> doc.Document:
    """Return the page: how many verdicts there are of each kind, then all of them."""
    folder = results.roles.out / STATEMENTS
    answered = [(each, [answer(evidence, results) for evidence in each.evidence]) for each in statements.statement]
    counts = Counter(_of_statement([each.verdict for each in answers]) for _, answers in answered)
    words: list[doc.Word] = [
        word for verdict in Verdict if counts[verdict] for word in (_verdict(verdict), f": {counts[verdict]}; ")
    ]
    many = sum(len(answers) for _, answers in answered)
    rows: list[Sequence[doc.Line]] = []
    for statement, answers in answered:
        for place, reply in enumerate(answers):
            first = (statement.where, doc.Prose(statement.says)) if place == 0 else ("", "")
            rows.append(
                (*first, _verdict(reply.verdict), doc.Prose(reply.on), doc.Prose(reply.result), _source(reply, folder))
            )
        if statement.open:
            rows.append((statement.where, doc.Prose(statement.says), "–", "", doc.Prose(statement.open), ""))
    rule = "A statement agrees if at least one of its rows agrees and no row disagrees."
    blocks: list[doc.Block] = [
        doc.Paragraph([f"{len(answered)} statements: ", *words, f"{counts[None]} that nothing here can test."]),
        doc.Paragraph(f"{many} comparisons and diagnoses, one a row. {rule}", soft=True),
        doc.Table(HEADS, rows),
        doc.Details("How verdicts are computed", [doc.Paragraph(RULES)]),
        doc.Paragraph(doc.Prose(statements.intro), soft=True),
        doc.Paragraph(("Made by ", doc.Code(f"{results.roles.command} --statements"), ". ", ALL)),
    ]
    return doc.Document(statements.title, blocks, style=STYLE)


def _of_statement(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the verdict of a statement: it differs where one does; None where nothing was tried."""
    order = (Verdict.differs, Verdict.agrees, Verdict.undecided, Verdict.missing)
    return next((verdict for verdict in order if verdict in verdicts), None)


def _verdict(verdict: Verdict) -> doc.Verdict:
    return doc.Verdict(str(verdict), CLASSES[verdict])


def _source(answer: Answer, folder: Path) -> doc.Line:
    if answer.folder is None:
        return ""
    name, place = answer.folder.name, os.path.relpath(answer.folder, folder).replace(os.sep, "/")
    files = [file for file in (doc.PAGE, doc.README) if (answer.folder / file).is_file()]
    link = doc.Link(name, folder=place) if len(files) == 2 else doc.Link(name, f"{place}/{files[0]}") if files else name
    return (link, ": ", doc.Code(answer.command)) if answer.command else link
