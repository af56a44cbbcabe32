"""The pages of a pack: one for each table or figure, and an index that says what is shown and what was not run."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import safe_name, write_atomic
from robustbench_kpca._core.web import render
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.answers import answers
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.curves import draw_curves, read_curves
from robustbench_kpca.report.markdown import link, paragraph, plain, prose, unmarked
from robustbench_kpca.report.render import PAGE, README, write_board
from robustbench_kpca.study.diagnostics.diagnosis import load_diagnosis
from robustbench_kpca.study.diagnostics.epochs import load_trajectory
from robustbench_kpca.study.diagnostics.figures import trajectory
from robustbench_kpca.study.diagnostics.pages import write_comparison
from robustbench_kpca.study.reproduction.cost import rows as cost_rows
from robustbench_kpca.study.reproduction.cost import write_cost
from robustbench_kpca.study.reproduction.counts import counted, reasons
from robustbench_kpca.study.reproduction.pack import Claims, Cost, Curves, Epochs, Item, Open, Table
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.steps import Diagnose, Follow, Planned, Train, board_or_trouble

HEADS = ("", "Title", "Done", "State")
STATEMENTS = "statements"
"""The folder of the page of the paper's statements."""
BESIDE = "What the paper says, beside what was measured here, with computed verdicts"


def write_pages(
    items: Mapping[str, Item], planned: Sequence[Planned], roles: Roles, only: Collection[str] = (), *,
    statements: bool = False,
) -> Path:  # fmt: skip
    """Write the pages of items that have results, and the index of all; return the path of the index as markdown.

    Args:
        items: of the pack: all of them, since the index lists them.
        planned: every step that they need.
        roles: of the pack.
        only: names of the items whose pages are written; empty: all. Pages of the others stay as they are.
        statements: whether the index links the page of the paper's statements, which is not written here.

    """
    pack = roles.pack
    boards = {name: board_or_trouble(name, item, roles) for name, item in items.items() if isinstance(item, Table)}
    shown = {run.record.spec.digest(): run.record for board, _ in boards.values() for run in board.runs if run.record}
    pages, rows, said = {}, [], []
    for name, item in items.items():
        (board, trouble), here = boards.get(name, (None, "")), (roles.out / name / PAGE).is_file()
        try:
            if trouble:
                here = False
            elif not only or name in only:
                here = (
                    _write_board(board, roles.out / name)
                    if board
                    else _write_item(name, item, planned, roles, list(shown.values()))
                )
        except BadInputError as error:
            here, trouble = False, str(error)
        pages[name] = here
        said += [(name, text) for text in answers(board)] if board and here else []
        rows.append(_row(name, item, planned, trouble, page=here))
    absent = reasons(planned)
    scale = roles.intro
    text = [f"# {plain(pack.title)}", "", paragraph(f"{pack.source}. {pack.intro}"), "", paragraph(scale), ""]
    text += [f"- {link(name, f'{name}/{README}')}: **{prose(found)}**" for name, found in said]
    text += [""] if said else []
    linked = [[link(row[0], f"{row[0]}/{README}" if pages[row[0]] else ""), *map(plain, row[1:])] for row in rows]
    text += [tabulate(linked, HEADS, tablefmt="pipe"), ""]
    if statements:
        text += [f"{link(BESIDE, f'{STATEMENTS}/{README}')}.", ""]
    if absent:
        text += ["## Not run", "", *(f"- {plain(f'{why}: {steps}')}" for why, steps in absent), ""]
        text += [f"`{roles.command} --plan` lists every step.", ""]
    text += [f"Made by `{roles.command}`; again, it keeps what is finished.", ""]
    write_atomic(roles.out / README, "\n".join(text).encode())
    page = render(
        "pack.html.j2", "study.reproduction", title=pack.title, intro=unmarked(f"{pack.source}. {pack.intro}"),
        scale=unmarked(scale), heads=HEADS, rows=rows, pages=pages, absent=absent, said=said, command=roles.command,
        statements=f"{STATEMENTS}/{PAGE}" if statements else "", beside=BESIDE,
    )  # fmt: skip
    write_atomic(roles.out / PAGE, page.encode())
    return roles.out / README


def _row(name: str, item: Item, planned: Sequence[Planned], trouble: str, *, page: bool) -> list[str]:
    mine = [one for one in planned if name in one.items]
    if isinstance(item, Open):
        return [name, item.title, "", f"not made: {item.reason}"]
    complete = mine and all(one.made for one in mine)
    state = "complete" if complete else "in part" if page else "not run"
    return [name, item.title, counted(mine), f"cannot be shown: {trouble}" if trouble else state]


def _write_board(board: Board, folder: Path) -> bool:
    shown = any(run.record for run in board.runs)
    if shown:
        write_board(board, folder)
    return shown


def _write_item(name: str, item: Item, planned: Sequence[Planned], roles: Roles, records: Sequence[Record]) -> bool:
    """Write the page of an item that is no table into its folder; return whether there was anything to show.

    `records`: those that the tables of the pack show.
    """
    mine = [one for one in planned if name in one.items]
    done = [one.step for one in mine if one.made]
    origin = f"{counted(mine)} done. Made by `{roles.command} --item {name}`."
    if isinstance(item, Cost):
        return _write_cost(name, item, roles, records, origin)
    if isinstance(item, Claims):
        diagnoses = [load_diagnosis(step.folder) for step in done if isinstance(step, Diagnose)]
        if diagnoses:
            write_comparison(diagnoses, roles.out / name, title=item.title, lead=(item.intro.strip(), unmarked(origin)))
        return bool(diagnoses)
    figures: dict[str, str] = {}
    if isinstance(item, Curves):
        weights = [roles.weights(step.training) for step in done if isinstance(step, Train)]
        runs = [read_curves(path) for path in weights if path.with_suffix(".csv").is_file()]
        figures = {"Training": draw_curves(runs, ".svg").decode()} if runs else {}
    elif isinstance(item, Epochs):
        figures = {
            step.model.name: trajectory(load_trajectory(step.folder)) for step in done if isinstance(step, Follow)
        }
    if figures:
        _write_figures(roles.out / name, item, figures, origin)
    return bool(figures)


def _write_cost(name: str, item: Cost, roles: Roles, records: Sequence[Record], origin: str) -> bool:
    found = cost_rows(item, roles, records)
    if found:
        write_cost(item, found, roles.out / name, origin)
    return bool(found)


def _write_figures(folder: Path, item: Item, figures: Mapping[str, str], origin: str) -> None:
    lines = [f"# {plain(item.title)}", "", paragraph(item.intro), ""]
    for title, figure in figures.items():
        drawn = figure[figure.index("<svg") :].replace("<svg ", '<svg style="background: #fff" ', 1)
        write_atomic(folder / f"{safe_name(title)}.svg", drawn.encode())
        lines += [f"## {plain(title)}", "", f"!{link(title, f'{safe_name(title)}.svg')}", ""]
    write_atomic(folder / README, "\n".join([*lines, origin, ""]).encode())
    inline = {title: figure[figure.index("<svg") :] for title, figure in figures.items()}
    write_atomic(folder / PAGE, _figure_page(item, inline, origin).encode())


def _figure_page(item: Item, figures: Mapping[str, str], origin: str) -> str:
    origin = unmarked(origin)
    return render("figure.html.j2", "study.reproduction", title=item.title, item=item, figures=figures, origin=origin)
