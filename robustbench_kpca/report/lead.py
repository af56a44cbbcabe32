"""What a board found, in a line: who is best and who is last; and the names of rows as people say them."""

from collections.abc import Collection, Mapping, Sequence

from robustbench_kpca.metrics import Unit, metric_for
from robustbench_kpca.models.families import ARCHITECTURES
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column

_WORDS = {
    "vit": "ViT", "fan": "FAN", "symvit": "SymViT", "symfan": "SymFAN", "rpc": "RPC", "primal": "Primal",
    "scaled": "Scaled", "identity": "Identity", "softmax": "Softmax", "symmetric": "Symmetric", "kep": "KEP",
    "svgp": "SVGP", "seq": "", "lm": "", "all": "", "sym": "",
}  # fmt: skip
EXPLAINED = {
    "RPC": "RPC attention (Teo & Nguyen 2024) splits the keys of attention into a low-rank and a sparse part.",
    "SymViT": "SymViT is a vision transformer whose attention takes the keys as queries, too.",
}
"""What a word in names of rows stands for, for readers who meet it first on a page over all boards."""
_LAYERS = {"all": "all layers", "sym": "symmetric"}


def spoken(board: Board) -> dict[str, str]:
    """Return row title -> name as people say it, of rows that are named after an architecture of one size.

    Others keep their title. `rpc_symvit_digits_adv` is "RPC-SymViT, adversarial". Architectures of plugins keep
    their title, too: no plugin is loaded for a name.
    """
    architectures = {row.title: ARCHITECTURES.place_of(row.title.removesuffix("_adv")) for row in board.spec.rows}
    recognised = {title: architecture for title, architecture in architectures.items() if architecture is not None}
    names = {title: _name(family, adversarial=title.endswith("_adv")) for title, (family, _) in recognised.items()}
    sizes = {size for _, size in recognised.values()}
    return names if len(sizes) == 1 and len(set(names.values())) == len(names) else {}


def explained(titles: str) -> str:
    """Return the sentences of `EXPLAINED` whose words occur in `titles`, a text of row names."""
    return " ".join(sentence for word, sentence in EXPLAINED.items() if word in titles)


def named(names: Mapping[str, str], title: str) -> str:
    """Return the name of a row."""
    return names.get(title, title)


def _name(family: str, *, adversarial: bool) -> str:
    words = family.split("_")
    attention = "-".join(filter(None, (_WORDS.get(word, word) for word in words)))
    layers = [_LAYERS[word] for word in words if word in _LAYERS]
    return ", ".join([attention, *layers, *(["adversarial"] if adversarial else [])])


LITERAL, CORRECTED = ", literal", ", corrected"
"""Ends of the titles of two columns: an attack as its authors ran it, and as it is meant."""
MOST_TIES_WITH_BEST, MOST_TIES_WITH_LAST = 3, 1
"""Most rows that are named as ties with the best row, or with the last; more are counted."""


def lead(board: Board, names: Mapping[str, str]) -> str:
    """Say which row is best in the ranked column and which is last; empty where no rows are compared.

    Rows of one training are not compared with rows of several, so only rows of the best row's kind are named.

    Args:
        board: the board.
        names: title of a row -> its name as people say it.
    """
    column = next(column for column in board.spec.column if column.title == board.spec.rank_by)
    values = {title: number.value for title in board.ranked() if (number := board.estimate(title, column)) is not None}
    if not values or (len(values) > 1 and not board.compared[column.title]):
        return ""
    best = next(iter(values))
    comparable = [title for title in values if (board.planned(title) > 1) == (board.planned(best) > 1)]
    comparable_values = {title: values[title] for title in comparable}
    sentence = _best_and_last(board, column, comparable_values, names, alone=len(values) == 1)
    if not_comparable := len(values) - len(comparable):
        kind = "one training" if board.planned(best) > 1 else "several trainings"
        sentence += f"; not compared: {not_comparable} row{'s' * (not_comparable > 1)} of {kind}"
    return f"{column.title}: {sentence}."


def _best_and_last(
    board: Board, column: Column, values: Mapping[str, float], names: Mapping[str, str], *, alone: bool
) -> str:
    """Name the best row, the last row, and the rows that tie with either.

    Args:
        board: the board.
        column: the ranked one.
        values: values of the comparable rows, best first.
        names: names of rows, as people say them.
        alone: whether no other row has a value.
    """
    best, *rest = values
    last = rest[-1] if rest else best
    text = {title: f"{named(names, title)} {metric_for(column.metric).unit.text(values[title])}" for title in values}
    ties_with_best = [title for title in rest if board.ranks[title] == board.ranks[best] == 1]
    if rest and ties_with_best == rest:
        return f"no row is clearly better than another ({text[best]} to {text[last]})"
    sentence = f"{'' if alone else 'best '}{text[best]}{_ties(ties_with_best, names, 'better', MOST_TIES_WITH_BEST)}"
    if rest and last not in ties_with_best:
        between = [title for title in rest[:-1] if board.ranks[title] is not None and title not in ties_with_best]
        ties_with_last = [title for title in between if not board.beats(title, last, column)]
        sentence += f"; last {text[last]}{_ties(ties_with_last, names, 'worse', MOST_TIES_WITH_LAST)}"
    return sentence


def _ties(titles: Sequence[str], names: Mapping[str, str], comparative: str, most: int) -> str:
    """Name the rows that tie, or count them if they are more than `most`; names may hold commas."""
    rows = "; ".join(named(names, title) for title in titles) if len(titles) <= most else f"{len(titles)} other rows"
    return f" (not clearly {comparative} than {rows})" if titles else ""


def contrast(board: Board) -> str:
    """Compare the ranked column, where its attack is corrected, with the same attack as its authors ran it.

    Gives the range of all rows in both columns. Only rows count whose trainings all have both numbers. Empty where the
    board lacks one of the two columns.
    """
    attack = board.spec.rank_by.removesuffix(CORRECTED)
    columns = [column for end in (LITERAL, CORRECTED) for column in board.spec.column if column.title == attack + end]
    complete_rows = [
        row.title
        for row in board.spec.rows
        if all(len(board.trainings(row.title, column)) == len(row.models) for column in columns)
    ]
    ranges = [text for column in columns if (text := _range(board, column, complete_rows))]
    if len(ranges) < 2:
        return ""
    metric = metric_for(columns[0].metric).title
    literal, corrected = ranges
    return f"{attack}, {metric[0].lower()}{metric[1:]}: {literal} as the authors ran it, {corrected} corrected."


def _range(board: Board, column: Column, rows: Sequence[str]) -> str:
    """Return the smallest and the largest value of rows in a column, as `3.1 to 52.0 %`; empty without values."""
    values = [number.value for row in rows if (number := board.estimate(row, column)) is not None]
    return ends(values, metric_for(column.metric).unit) if values else ""


def ends(values: Collection[float], unit: Unit) -> str:
    """Return the smallest and the largest of values, as `3.1 to 52.0 %`."""
    low, high = unit.text(min(values)), unit.text(max(values))
    return high if low == high else f"{unit.number(min(values))} to {high}"
