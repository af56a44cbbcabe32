"""The pages of a pack: one for each table or figure, and an index that says what is shown, and what not and why."""

import re
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import safe_name
from robustbench_kpca._core.web import document as doc
from robustbench_kpca._core.web.write import write_page
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.answers import answers, in_families
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.cards import card
from robustbench_kpca.report.curves import draw_curves, read_curves
from robustbench_kpca.report.lead import contrast, spoken
from robustbench_kpca.report.render import write_board
from robustbench_kpca.study.diagnostics.diagnosis import load_diagnosis
from robustbench_kpca.study.diagnostics.epochs import load_trajectory
from robustbench_kpca.study.diagnostics.figures import trajectory
from robustbench_kpca.study.diagnostics.pages import write_comparison
from robustbench_kpca.study.reproduction.cost import document as cost
from robustbench_kpca.study.reproduction.efficiency import document as efficiency
from robustbench_kpca.study.reproduction.efficiency import load_costs
from robustbench_kpca.study.reproduction.pack import Claims, Cost, Curves, Efficiency, Epochs, Item, Open, Table
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.states import counted, reasons
from robustbench_kpca.study.reproduction.steps import Diagnose, Follow, Planned, Train
from robustbench_kpca.study.reproduction.tables import board_or_trouble

COMPLETE = "complete"
STATEMENTS = "statements"
"""The folder of the page of the paper's statements."""
ALL = doc.Link("All tables and figures", folder="..")
_WHITE = "figure svg { background: #fff; color: #000; border-radius: 4px; }"
BESIDE = "What the paper says, beside what was measured here, with computed verdicts"


def write_pages(
    items: Mapping[str, Item],
    steps: Sequence[Planned],
    roles: Roles,
    only: Collection[str] = (),
    *,
    statements: bool = False,
) -> tuple[Path, dict[str, str]]:
    """Write the pages of items that have results, and the index of all.

    Return the path of the index as markdown, and why items have no page though nothing of them is left to do here.

    Args:
        items: items of the pack: all of them, since the index lists them.
        steps: every one that they need.
        only: names of the items whose pages are written; empty: all. Pages of the others stay as they are.
        statements: whether the index links the page of the paper's statements, which is not written here.
    """
    filled = {name: board_or_trouble(name, item, roles) for name, item in items.items() if isinstance(item, Table)}
    boards = in_families({name: board for name, (board, _) in filled.items()}, roles.pack.families)
    records = {run.record.spec.digest(): run.record for board in boards.values() for run in board.runs if run.record}
    pages, rows, changes = {}, [], list[doc.Line]()
    cards = list[tuple[tuple[int, float], doc.Card]]()
    unmade: dict[str, str] = {}
    for name, item in items.items():
        board, trouble = boards.get(name), filled.get(name, (None, ""))[1]
        has_page = (roles.out / name / doc.PAGE).is_file()
        try:
            if trouble:
                has_page = False
            elif not only or name in only:
                has_page = (
                    _write_board(board, roles.out / name)
                    if board
                    else _write_item(name, item, steps, roles, list(records.values()))
                )
        except BadInputError as error:
            has_page, trouble = False, str(error)
        pages[name] = has_page
        if not has_page and (why := trouble or _hindrance(item, [own for own in steps if name in own.items])):
            unmade[name] = why
        if board and has_page:
            changes += [(doc.Link(name, folder=name), f": {changed}")] if (changed := contrast(board)) else []
            finished = [answer for answer in answers(board) if answer.has_all_trainings]
            cards += [(answer.decidedness, card(answer, spoken(board), name)) for answer in finished]
        rows.append(_row(name, item, steps, trouble, page=has_page))
    found: list[doc.Block] = [doc.Bullets(changes)] if changes else []
    found += [shown for _, shown in sorted(cards, key=itemgetter(0))]
    write_page(_index(roles, rows, pages, found, reasons(steps), statements=statements), roles.out)
    return roles.out / doc.README, unmade


def _hindrance(item: Item, steps: Sequence[Planned]) -> str:
    """Return why an item cannot be made here; empty where a step of it can be carried out or failed."""
    if isinstance(item, Open):
        return item.reason
    return steps[0].why if all(planned.state == "absent" for planned in steps) else ""


def _index(
    roles: Roles,
    rows: Sequence[Sequence[str]],
    pages: Mapping[str, bool],
    found: Sequence[doc.Block],
    absent: Sequence[tuple[str, str]],
    *,
    statements: bool,
) -> doc.Document:
    """Return the page of a pack: what was found, its finished items, those in progress, and what was not run."""
    pack, command = roles.pack, doc.Code(roles.command)
    table = [[doc.Link(row[0], folder=row[0]) if pages[row[0]] else row[0], *row[1:]] for row in rows]
    finished = [row[:-1] for row in table if row[-1] == COMPLETE]
    unfinished = [row for row in table if row[-1] != COMPLETE]
    scale, *rest = re.split(r"(?<=\.)\s", roles.chosen.intro.strip(), maxsplit=1)
    blocks: list[doc.Block] = [*found, doc.Paragraph(doc.Prose(scale))]
    if finished:
        blocks.append(doc.Table(("Item", "Title", "Done"), finished))
    if unfinished:
        blocks += [doc.Heading("In progress"), doc.Table(("Item", "Title", "Done", "State"), unfinished)]
    if statements:
        blocks.append(doc.Paragraph((doc.Link(BESIDE, folder=STATEMENTS), ".")))
    blocks += [doc.Paragraph(doc.Prose(text)) for text in (f"{pack.source}. {pack.intro}", *rest)]
    if absent:
        steps = [doc.Bullets([f"{why}: {steps}" for why, steps in absent])]
        blocks += [
            doc.Details("Not run", [*steps, doc.Paragraph((doc.Code(f"{roles.command} --plan"), " lists every step."))])
        ]
    blocks.append(doc.Paragraph(("Made by ", command, ". The same command keeps what is finished.")))
    return doc.Document(pack.title, blocks)


def _row(name: str, item: Item, steps: Sequence[Planned], trouble: str, *, page: bool) -> list[str]:
    own_steps = [planned for planned in steps if name in planned.items]
    if isinstance(item, Open):
        return [name, item.title, "", f"not made: {item.reason}"]
    state = COMPLETE if own_steps and all(planned.made for planned in own_steps) else "in part" if page else "not run"
    return [name, item.title, counted(own_steps), f"cannot be shown: {trouble}" if trouble else state]


def _write_board(board: Board, folder: Path) -> bool:
    has_records = any(run.record for run in board.runs)
    if has_records:
        write_board(board, folder)
    return has_records


def _write_item(name: str, item: Item, steps: Sequence[Planned], roles: Roles, records: Sequence[Record]) -> bool:
    """Write the page of an item that is no table into its folder; return whether there was anything to show.

    `records`: those that the tables of the pack show.
    """
    own_steps, folder = [planned for planned in steps if name in planned.items], roles.out / name
    done, command = [planned.step for planned in own_steps if planned.made], f"{roles.command} --item {name}"
    origin = doc.Paragraph((f"{counted(own_steps)} done. Made by ", doc.Code(command), ". ", ALL))
    page: doc.Document | None = None
    match item:
        case Claims():
            diagnoses = [load_diagnosis(step.folder) for step in done if isinstance(step, Diagnose)]
            if diagnoses:
                lead, foot = [doc.Prose(item.intro)], [origin.text]
                write_comparison(diagnoses, folder, title=item.title, lead=lead, foot=foot)
            return bool(diagnoses)
        case Cost():
            page = cost(item, roles, records, origin)
        case Efficiency():
            page = efficiency(item, load_costs(folder), origin) if done else None
        case Curves():
            weights = [step.training.weights for step in done if isinstance(step, Train)]
            runs = [read_curves(path) for path in weights if path.with_suffix(".csv").is_file()]
            page = _figures(item, origin, {"Training": draw_curves(runs).decode()} if runs else {})
        case Epochs():
            followed = [step for step in done if isinstance(step, Follow)]
            figures = {step.model.name: trajectory(load_trajectory(step.folder)) for step in followed}
            page = _figures(item, origin, figures)
    if page is not None:
        write_page(page, folder)
    return page is not None


def _figures(item: Curves | Epochs, origin: doc.Paragraph, figures: Mapping[str, str]) -> doc.Document | None:
    """Return a page of figures, each below its title; None without figures."""
    blocks: list[doc.Block] = []
    for title, figure in figures.items():
        blocks += [doc.Heading(title), doc.Figure(figure[figure.index("<svg") :], title, f"{safe_name(title)}.svg")]
    blocks += [doc.Paragraph(doc.Prose(item.intro)), origin]
    return doc.Document(item.title, blocks, style=_WHITE) if figures else None
