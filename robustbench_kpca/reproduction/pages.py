"""The pages of a pack: one for each table or figure, and an index that says what is shown and what was not run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from tabulate import tabulate

from robustbench_kpca.diagnostics.diagnosis import load_diagnosis
from robustbench_kpca.diagnostics.pages import write_comparison
from robustbench_kpca.files import write_atomic
from robustbench_kpca.report.curves import draw_curves, read_curves
from robustbench_kpca.report.render import write_board
from robustbench_kpca.reproduction.pack import Claims, Curves, Epochs, Item, Open, Pack, Table
from robustbench_kpca.reproduction.roles import Roles
from robustbench_kpca.reproduction.steps import Diagnose, Follow, Planned, Train, board_of

PAGE, README = "index.html", "README.md"
HEADS = ("", "Title", "Steps", "State")


def write_pages(name: str, pack: Pack, items: Mapping[str, Item], planned: Sequence[Planned], roles: Roles) -> Path:
    """Write the page of every item that has results, and the index; return the path of the index as markdown."""
    pages = {item: _write_item(item, items[item], planned, roles) for item in items}
    rows = [_row(item, items[item], planned, page=pages[item]) for item in items]
    absent = _reasons(planned)
    command = f"rbk reproduce {name} --scale {roles.scale}"
    scale = (pack.embedded if roles.scale == "embedded" else pack.paper).intro.strip()
    text = [f"# {pack.title}", "", f"{pack.source}. {pack.intro.strip()}", "", scale, ""]
    linked = [[f"[{row[0]}]({row[0]}/{README})" if pages[row[0]] else row[0], *row[1:]] for row in rows]
    text += [tabulate(linked, HEADS, tablefmt="pipe"), ""]
    if absent:
        text += ["## Not run", "", *(f"- {why}: {steps}" for why, steps in absent), ""]
    text += [f"Made by `{command}`; again, it keeps what is finished.", ""]
    write_atomic(roles.out / README, "\n".join(text).encode())
    template = Environment(
        loader=PackageLoader("robustbench_kpca.reproduction"), autoescape=True, undefined=StrictUndefined
    ).get_template("pack.html.j2")
    page = template.render(
        pack=pack, scale=scale, heads=HEADS, rows=rows, pages=pages, absent=absent, command=command
    )
    write_atomic(roles.out / PAGE, page.encode())
    return roles.out / README


def _row(name: str, item: Item, planned: Sequence[Planned], *, page: bool) -> list[str]:
    mine = [one for one in planned if name in one.items]
    done = sum(one.state == "done" for one in mine)
    if isinstance(item, Open):
        return [name, item.title, "", f"not made: {item.reason}"]
    state = "complete" if mine and done == len(mine) else "in part" if page else "not run"
    return [name, item.title, f"{done} of {len(mine)}", state]


def _reasons(planned: Sequence[Planned]) -> list[tuple[str, str]]:
    """Return every reason why steps were not run, with those steps."""
    found: dict[str, list[str]] = {}
    for one in planned:
        if one.state != "done":
            found.setdefault(one.why or "not begun", []).append(str(one.step))
    return [(why, f"{steps[0]}" + (f" and {len(steps) - 1} more" if len(steps) > 1 else "")) for why, steps in found.items()]


def _write_item(name: str, item: Item, planned: Sequence[Planned], roles: Roles) -> bool:
    """Write the page of an item into its folder; return whether there was anything to show."""
    done = [one.step for one in planned if name in one.items and one.state == "done"]
    folder = roles.out / name
    match item:
        case Table():
            board = board_of(name, item, roles)
            if any(run.record for run in board.runs):
                write_board(board, folder)
                return True
        case Claims():
            found = [load_diagnosis(step.folder) for step in done if isinstance(step, Diagnose)]
            if found:
                write_comparison(found, folder)
                return True
        case Curves():
            runs = [read_curves(roles.weights(step.training)) for step in done if isinstance(step, Train)]
            if runs:
                write_atomic(folder / "curves.svg", draw_curves(runs, ".svg"))
                _write_figure(folder, item, ["curves.svg"])
                return True
        case Epochs():
            figures = [_follow(step, folder) for step in done if isinstance(step, Follow)]
            if figures:
                _write_figure(folder, item, figures)
                return True
    return False


def _write_figure(folder: Path, item: Curves | Epochs, figures: Sequence[str]) -> None:
    lines = [f"# {item.title}", "", item.intro.strip(), "", *(f"![{item.title}]({figure})" for figure in figures), ""]
    write_atomic(folder / README, "\n".join(lines).encode())
