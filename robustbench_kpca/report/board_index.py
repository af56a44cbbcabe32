"""One page over all boards and packs below a folder, made from what `rbk board render` left there."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import by_number, require_marked, write_atomic
from robustbench_kpca._core.strict import load_toml
from robustbench_kpca._core.web import document as doc
from robustbench_kpca._core.web.as_html import html
from robustbench_kpca._core.web.as_html import line as html_line
from robustbench_kpca._core.web.figures import on_white
from robustbench_kpca.metrics import PERCENT, Metric, metric_for
from robustbench_kpca.metrics.shared.power import ALPHA
from robustbench_kpca.records.estimate import holm
from robustbench_kpca.report.answers import HELPS, SAME, Answer, Duel
from robustbench_kpca.report.cards import card, forest
from robustbench_kpca.report.lead import explained
from robustbench_kpca.report.question import Question
from robustbench_kpca.report.render import JSON

_HEADS = ("Board", "First (= tied)", "Ranked by", "Data", "Rows", "Audited rows", "Runs")
MANY = 3
"""Most rows in the first place that are named; more are counted."""
OVERVIEW = "overview.svg"
_FOUND = (
    "The method minus its baseline, and minus its control: a twin without its mechanism. Both intervals of a question "
    "hold together with 95 %. The most decided answers come first. Grey: what these trainings could not find reliably."
)
MADE = "Made by `rbk board index`."
"""Stands at the end of the page that is written here, and tells it from others."""
Answered = tuple[str, Answer]
"""The folder of a board, and an answer on its page."""
_WIDE = 7.6
"""Inches of the picture of all answers."""


@dataclass(frozen=True)
class Entry:
    """A board: where its page is, and what leads it."""

    link: str
    title: str
    data: str
    rows: int
    rank_by: str
    first: str
    audited: str
    ready: int
    runs: int

    @property
    def whole(self) -> bool:
        """Whether all of its evaluations are made."""
        return self.ready == self.runs

    @property
    def cells(self) -> tuple[doc.Line, ...]:
        """Its row in the table of boards, below `_HEADS`."""
        first = doc.Link(self.title, self.link), self.first, self.rank_by, self.data
        return (*first, str(self.rows), self.audited, self.how_far)

    @property
    def how_far(self) -> str:
        """The number of its evaluations, and how many of them are made unless all are."""
        return str(self.runs) if self.whole else f"{self.ready} of {self.runs}"


def write_index(folder: Path) -> Path:
    """Write index.html: what was found, every board with its first rows, every pack with its pages; and the picture.

    Raises:
        BadInputError: there is no rendered board, or an index.html that was not written here.
    """
    nested = [path.with_name(JSON) for path in folder.glob("*/*/board.toml") if path.with_name(JSON).is_file()]
    boards = [_entry(path, folder) for path in sorted([*folder.glob(f"*/{JSON}"), *nested])]
    packs = [_pack(path) for path in sorted(folder.glob("*/pack.toml"))]
    if not boards and not packs:
        raise BadInputError(f"no rendered board below {folder}", fix="run: rbk board render NAME")
    found, page = answers_below(folder), folder / doc.PAGE
    answers = [answer for _, answer in found]
    drawn = overview(answers)
    require_marked([page], html_line(doc.Prose(MADE)), "was not written by rbk board index")
    words = explained(" ".join(f"{answer.question.subject} {answer.question.baseline}" for answer in answers))
    sentences = (doc.Strong(verdicts(answers)), words)
    cards = [(answer.verdict, card(answer, {}, place)) for place, answer in found]
    write_atomic(page, html(_document(boards, packs, sentences, drawn, cards)).encode())
    if drawn:
        write_atomic(folder / OVERVIEW, on_white(drawn))
    return page


def _document(
    boards: Sequence[Entry],
    packs: Sequence[dict[str, Any]],
    findings: Sequence[doc.Line],
    drawn: str,
    cards: Sequence[tuple[str, doc.Card]],
) -> doc.Document:
    blocks: list[doc.Block] = []
    if drawn:
        blocks += [
            doc.Heading("What was found"),
            *(doc.Paragraph(line) for line in findings if line),
            *(shown for verdict, shown in cards if verdict != SAME),
            doc.Figure(drawn, _FOUND),
        ]
        undecided = [shown for verdict, shown in cards if verdict == SAME]
        blocks += [doc.Details(f"{SAME[0].upper()}{SAME[1:]}: {len(undecided)}", undecided)] if undecided else []
    for heading, whole in (("Boards", True), ("In progress", False)):
        rows = [board.cells for board in boards if board.whole == whole]
        blocks += [doc.Heading(heading), doc.Table(_HEADS, rows)] if rows else []
    blocks += [doc.Heading("Papers, reproduced")] if packs else []
    for pack in packs:
        title = doc.Link(pack["title"], pack["link"]) if pack["link"] else pack["title"]
        blocks += [doc.Heading(title, level=3), doc.Paragraph(pack["source"], soft=True)]
        blocks.append(doc.Bullets([(doc.Link(title, link), audited) for title, link, audited in pack["items"]]))
    blocks.append(
        doc.Paragraph(
            ("Every number has a 95 % interval, and every page says how it is made again. ", doc.Prose(MADE)), soft=True
        )
    )
    return doc.Document("Leaderboards", blocks)


def _entry(path: Path, folder: Path) -> Entry:
    with rendered(path) as board:
        first: dict[bool, list[str]] = {}  # rows of several trainings and of one are ranked among themselves
        for row in board["rows"]:
            if row["rank"] == 1:
                first.setdefault(any("trainings" in cell for cell in row["cells"] if cell), []).append(row["name"])
        return Entry(
            f"{path.parent.relative_to(folder).as_posix()}/{doc.PAGE}",
            board["title"],
            f"{board['data']} ({board['split']})",
            len(board["rows"]),
            rank_by=board["rank_by"],
            first="; ".join(_tied(names) for names in first.values()) or "–",
            audited=_audited(board["audited"]),
            ready=board["ready"],
            runs=board["runs"],
        )


def _audited(rows: dict[str, int]) -> str:
    """Say of how many attacked rows a network was audited; every row that the findings name has a full audit."""
    if not rows["rows"]:
        return "–"
    return f"{rows['full']} full, {rows['quick']} quick of {rows['rows']}"


def _tied(names: Sequence[str]) -> str:
    return " = ".join(names) if len(names) <= MANY else f"{len(names)} rows tied"


def _pack(path: Path) -> dict[str, Any]:
    content = load_toml(path)
    items = [
        (
            str(load_toml(item).get("title", item.stem)),
            f"{path.parent.name}/{item.stem}/{doc.PAGE}",
            _audited_in(path.parent / item.stem / JSON),
        )
        for item in sorted(path.parent.glob("*.toml"), key=by_number)
        if (path.parent / item.stem / doc.PAGE).is_file()
    ]
    link = f"{path.parent.name}/{doc.PAGE}" if (path.parent / doc.PAGE).is_file() else ""
    return {
        "title": content.get("title", path.parent.name),
        "source": content.get("source", ""),
        "link": link,
        "items": items,
    }


def _audited_in(path: Path) -> str:
    """Say in brackets how many rows of an item were audited, if it is a table whose rows are attacked."""
    if not path.is_file():
        return ""
    with rendered(path) as board:
        rows = board["audited"]
    return f" (audited: {_audited(rows)} rows)" if rows["rows"] else ""


@contextmanager
def rendered(path: Path) -> Iterator[dict[str, Any]]:
    """Give what a board.json holds.

    Raises:
        BadInputError: it is damaged, or lacks what is looked for.
    """
    try:
        yield json.loads(path.read_bytes())
    except (ValueError, KeyError, TypeError):
        raise BadInputError(f"{path} was not written by this version", fix="run: rbk board render NAME") from None


def answers_below(folder: Path) -> list[Answered]:
    """Return the answers of all boards below a folder, the most decided first.

    These are the ones that are tested, in points, with all trainings evaluated.
    """
    found: list[Answered] = []
    for path in sorted([*folder.glob(f"*/{JSON}"), *folder.glob(f"*/*/{JSON}")]):
        with rendered(path) as board:
            metrics = {column["title"]: metric_for(column["metric"]) for column in board["columns"]}
            for content in board["answers"]:
                asked = {name: content[name] for name in Question.model_fields if name in content}
                answer = Answer.of(content, Question(**asked), metrics[content["column"]])
                found.append((path.parent.relative_to(folder).as_posix(), answer))
    shown = [(place, answer) for place, answer in found if answer.metric.unit.points and answer.has_all_trainings]
    tested = [(place, answer) for place, answer in shown if answer.against and answer.against.low is not None]
    return sorted(tested, key=lambda pair: pair[1].decidedness)


def verdicts(answers: Sequence[Answer]) -> str:
    """Say how many questions have each verdict, how many help in the whole family, and how often a gain is excluded.

    The p-value of a question is the larger one of its comparisons; Holm adjusts it for all questions.
    """
    counts = Counter(answer.verdict for answer in answers)
    each = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    small = sum(map(_gains_little, answers))
    excluded = f" In {small} a gain over the baseline above the planned margin is excluded." if small else ""
    adjusted = holm([max(duel.p_value or 0.0 for duel in (a.against, a.control) if duel) for a in answers])
    remain = sum(p_value < ALPHA for answer, p_value in zip(answers, adjusted, strict=True) if answer.verdict == HELPS)
    helps = f" Adjusted for all questions by Holm, {remain} of {counts[HELPS]} {HELPS}." if counts[HELPS] else ""
    return f"{len(answers)} question{'s' * (len(answers) > 1)}: {each}.{helps}{excluded}" if answers else ""


def _gains_little(answer: Answer) -> bool:
    assert answer.against is not None
    most, margin = _gain(answer.against, answer.metric).high, answer.question.margin
    return margin is not None and most is not None and bool(answer.metric.unit.scale * most < margin)


def overview(answers: Sequence[Answer]) -> str:
    """Draw them in their order, better to the right; return the text of an SVG, empty where there is none."""
    rows = []
    for answer in answers:
        asked = answer.question
        labels = {
            f"{asked.column} ({answer.data}): {asked.subject} − {asked.baseline}": answer.against,
            f"− {asked.ablation} (control)": answer.control,
        }
        rows += [(label, _gain(duel, answer.metric), answer.verdict) for label, duel in labels.items() if duel]
    return forest(rows, PERCENT, title="Answers of all boards", width=_WIDE)


def _gain(duel: Duel, metric: Metric) -> Duel:
    """Return a difference that is above zero for the better."""
    if not metric.lower_is_better or duel.low is None or duel.high is None:
        return duel
    return replace(duel, difference=-duel.difference, low=-duel.high, high=-duel.low)
