"""Training curves of one or several runs in one figure: loss and scores by epoch, on training and validation data.

Such figures are on the right of Fig. 3 and 4 of Teo & Nguyen (2024, arXiv:2406.13762): several models, one line each.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import without_seed
from robustbench_kpca._core.web.figures import save
from robustbench_kpca.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "rbk"}
ACROSS = 4
"""Recipes that share a panel, or that stand side by side where there are more."""


@dataclass(frozen=True)
class Kind:
    """What a line is of, and how it is drawn: the colour only where recipes have panels of their own."""

    of: str
    style: str
    colour: str


KINDS = {
    "train_": Kind("training", "-", "#7f7f7f"),
    "val_": Kind("validation", "--", "#0072B2"),
    "val_adv_": Kind("validation, attacked", ":", "#D55E00"),
    "val_stronger_": Kind("validation, attacked more strongly", "-.", "#CC79A7"),
}
"""Beginning of a column's name -> its kind."""


@dataclass(frozen=True)
class Curves:
    """The numbers of one run.

    Attributes:
        rows: one per epoch: column -> value, without the columns that are empty.
    """

    name: str
    rows: tuple[Mapping[str, float], ...]

    def line(self, column: str) -> list[tuple[int, float]]:
        """Return (epochs done, value) of a column; empty where the run does not have it."""
        return [(int(row["epoch"]) + 1, row[column]) for row in self.rows if column in row]

    def columns(self) -> set[str]:
        """Return the columns in which there is a number."""
        return {name for row in self.rows for name in row}


def read_curves(run: str | Path) -> Curves:
    """Read the `NAME.csv` of a run.

    Args:
        run: this file, the file of its weights `NAME.safetensors`, or the path of both without suffix.

    Raises:
        BadInputError: there is no such file, or it does not hold curves.
    """
    path = Path(run)
    if path.suffix != ".csv":
        path = path.with_name(f"{path.name.removesuffix('.safetensors').removesuffix('.ema')}.csv")
    try:
        rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"no training curves at {path} ({reason_of(error)})", fix="give the NAME.csv of a run"
        ) from None
    try:
        numbers = tuple({name: float(value) for name, value in row.items() if value} for row in rows)
        if not numbers or any({"epoch", "loss"} - row.keys() for row in numbers):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise BadInputError(f"{path} holds no training curves", expected="rows with epoch and loss") from None
    return Curves(path.stem, numbers)


def epochs_in(run: str | Path) -> int:
    """Return the number of epochs in the curves of a run; 0 where there are none, or damaged ones."""
    try:
        return len(read_curves(run).rows)
    except BadInputError:
        return 0


def panels_of(runs: Sequence[Curves]) -> dict[str, dict[str, str]]:
    """Return what is drawn: title of a panel -> column -> beginning of its name, for the columns that some run has.

    The first panel is the loss; then come accuracy and the other scores of tasks.
    """
    titles = {name: name for task in TASKS.names() for name in TASKS.get(task).scores}
    panels = {}
    for name, title in {"loss": "loss", **titles}.items():
        columns = {("loss" if (kind, name) == ("train_", "loss") else kind + name): kind for kind in KINDS}
        recorded = set().union(*(run.columns() for run in runs))
        drawn = {column: kind for column, kind in columns.items() if column in recorded}
        if drawn:
            panels[title] = drawn
    return panels


def draw_curves(runs: Sequence[Curves]) -> bytes:
    """Draw the curves of all runs as SVG; runs `NAME-s0`, `NAME-s1` ... of one recipe are thin lines of one look.

    Up to four recipes share a panel for each score, one colour a recipe. Where there are more, each recipe has its own
    panels, one colour a kind of data; panels of one score have the same axes.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    recipes = by_recipe(runs)
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained", dpi=120)
        FigureCanvasSVG(figure)
        (_together if len(recipes) <= ACROSS else _side_by_side)(figure, recipes, panels_of(runs))
        save(figure, buffer := io.StringIO())
    return buffer.getvalue().encode()


def by_recipe(runs: Iterable[Curves]) -> dict[str, list[Curves]]:
    """Group runs that differ in their seed; the label of several says how many they are."""
    groups: dict[str, list[Curves]] = {}
    for run in runs:
        groups.setdefault(without_seed(run.name)[0], []).append(run)
    return {(f"{name} ({len(same)} seeds)" if len(same) > 1 else same[0].name): same for name, same in groups.items()}


Panels = Mapping[str, Mapping[str, str]]
"""Title of a panel -> column -> beginning of its name."""


def _together(figure: "Figure", recipes: Mapping[str, Sequence[Curves]], panels: Panels) -> None:
    """Draw one panel a score, in which each recipe has a colour."""
    figure.set_size_inches(3.6 * len(panels) + 2.6, 3.2)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, columns) in zip(axes, panels.items(), strict=True):
        for number, same in enumerate(recipes.values()):
            for column, kind in columns.items():
                _draw(axis, same, column, f"C{number}", KINDS[kind].style)
        axis.set(xlabel="epoch", ylabel=title)
        axis.grid(alpha=0.25)
    names = [(f"C{number}", "-", name) for number, name in enumerate(recipes)]
    _legend(figure, [*names, *(("0.4", kind.style, kind.of) for kind in _kinds(panels))], "outside right center")


def _side_by_side(figure: "Figure", recipes: Mapping[str, Sequence[Curves]], panels: Panels) -> None:
    """Draw the panels of each recipe below its name, four recipes side by side."""
    blocks = -(-len(recipes) // ACROSS)
    figure.set_size_inches(2.6 * ACROSS, 1.5 * blocks * len(panels) + 0.8)
    grid = figure.add_gridspec(blocks * len(panels), ACROSS)
    first: dict[str, Axes] = {}
    for number, (name, same) in enumerate(recipes.items()):
        block, place = divmod(number, ACROSS)
        for row, (title, columns) in enumerate(panels.items()):
            like = first.get(title)
            axis = figure.add_subplot(grid[block * len(panels) + row, place], sharex=like, sharey=like)
            first.setdefault(title, axis)
            for column, kind in columns.items():
                _draw(axis, same, column, KINDS[kind].colour, KINDS[kind].style)
            axis.grid(alpha=0.25)
            if row == 0:
                axis.set_title(name, loc="left", fontsize=7.5, parse_math=False)
            if row == len(panels) - 1:
                axis.set_xlabel("epoch")
            if place == 0:
                axis.set_ylabel(title)
    _legend(figure, [(kind.colour, kind.style, kind.of) for kind in _kinds(panels)], "outside lower center")


Place = Literal["outside right center", "outside lower center"]


def _kinds(panels: Panels) -> list["Kind"]:
    drawn = {kind for columns in panels.values() for kind in columns.values()}
    return [kind for name, kind in KINDS.items() if name in drawn]


def _legend(figure: "Figure", lines: Sequence[tuple[str, str, str]], place: Place) -> None:
    """Name lines (colour, style, name)."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linestyle=style, label=name) for colour, style, name in lines]  # type: ignore[arg-type]
    columns = len(lines) if place == "outside lower center" else 1
    for text in figure.legend(handles=handles, loc=place, frameon=False, ncols=columns).get_texts():
        text.set_parse_math(False)  # a name may contain a $, which is no formula


def _draw(axis: "Axes", runs: Sequence[Curves], column: str, colour: str, style: str) -> None:
    for run in runs:
        points = run.line(column)
        if points:
            x, y = zip(*points, strict=True)
            width = 1.4 if len(runs) == 1 else 0.8
            axis.plot(x, y, color=colour, linestyle=style, linewidth=width, marker="." if len(x) == 1 else "")
