"""The page of a paper's statements beside what was measured here; its verdicts are computed when it is written."""

from collections import Counter
from pathlib import Path

from tabulate import tabulate

from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.web import render
from robustbench_kpca.report.markdown import code, link, paragraph, plain, prose, unmarked
from robustbench_kpca.study.reproduction.evidence import Answer, answer
from robustbench_kpca.study.reproduction.pages import STATEMENTS
from robustbench_kpca.study.reproduction.results import Results
from robustbench_kpca.study.reproduction.statements import Statements
from robustbench_kpca.study.reproduction.verdicts import Verdict

HEADS = ("Where", "The paper says", "Verdict", "Measured on", "Gain or value [interval]", "From")
CLASSES = {
    Verdict.agrees: "supported", Verdict.differs: "not-supported", Verdict.undecided: "not-testable",
    Verdict.missing: "not-measured",
}  # fmt: skip
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


def write_statements(statements: Statements, own: Results) -> Path:
    """Write README.md and index.html into the folder `statements` of a pack's results; return the former's path."""
    folder = own.roles.out / STATEMENTS
    for name, text in pages(statements, own).items():
        write_atomic(folder / name, text.encode())
    return folder / "README.md"


def pages(statements: Statements, own: Results) -> dict[str, str]:
    """Return the texts of README.md and index.html."""
    folder = own.roles.out / STATEMENTS
    found = [(one, [answer(evidence, own) for evidence in one.evidence]) for one in statements.statement]
    command = f"{own.roles.command} --statements"
    counts = Counter(made.verdict for _, answers in found for made in answers)
    untested = sum(bool(one.open) for one in statements.statement)
    each = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in Verdict if counts[verdict])
    summary = (
        f"Statements: {len(found)}, of which {untested} cannot be tested by anything here. Comparisons and diagnoses "
        f"beside the others, each with its own verdict: {counts.total()} ({each})."
    )
    rows = []
    for one, answers in found:
        for place, made in enumerate(answers):
            first = (prose(one.where), prose(one.says)) if place == 0 else ("", "")
            rows.append((*first, _strong(made.verdict), prose(made.on), prose(made.result), _source(made, folder)))
        if one.open:
            rows.append((prose(one.where), prose(one.says), "–", "", prose(one.open), ""))
    text = [f"# {plain(statements.title)}", "", paragraph(statements.intro), "", summary, ""]
    text += [tabulate(rows, HEADS, tablefmt="pipe"), "", RULES, "", f"Made by {code(command)}.", ""]
    page = render(
        "statements.html.j2", "study.reproduction", title=statements.title, intro=unmarked(statements.intro),
        summary=summary, found=found, heads=HEADS, rules=RULES, command=command, folder=folder,
        classes=CLASSES,
    )  # fmt: skip
    return {"README.md": "\n".join(text), "index.html": page}


def _strong(verdict: Verdict) -> str:
    return f"**{verdict}**" if verdict in (Verdict.agrees, Verdict.differs) else str(verdict)


def _source(made: Answer, folder: Path) -> str:
    if made.folder is None:
        return ""
    shown = link(made.folder.name, made.link(folder, "README.md"))
    return f"{shown}: {code(made.command)}" if made.command else shown
