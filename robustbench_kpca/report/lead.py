"""What a board found, in a line: who is best and who is last; and the names of rows as people say them."""

from collections.abc import Mapping, Sequence

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.models.families import ARCHITECTURES
from robustbench_kpca.report.board import Board

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

    Others keep their title. `rpc_symvit_digits_adv` is "RPC-SymViT, adversarial". A page loads no plugin for a name.
    """
    titles = [row.title for row in board.spec.rows]
    places = {title: ARCHITECTURES.place_of(title.removesuffix("_adv")) for title in titles}
    parts = {title: place for title, place in places.items() if place is not None}
    names = {title: _said(family, adversarial=title.endswith("_adv")) for title, (family, _) in parts.items()}
    sizes = {size for _, size in parts.values()}
    return names if len(sizes) == 1 and len(set(names.values())) == len(names) else {}


def explained(titles: str) -> str:
    """Return a sentence for each word in names of rows that the field does not know."""
    return " ".join(sentence for word, sentence in EXPLAINED.items() if word in titles)


def named(names: Mapping[str, str], title: str) -> str:
    """Return the name of a row."""
    return names.get(title, title)


def _said(family: str, *, adversarial: bool) -> str:
    words = family.split("_")
    said = "-".join(filter(None, (_WORDS.get(word, word) for word in words)))
    layers = [_LAYERS[word] for word in words if word in _LAYERS]
    return ", ".join([said, *layers, *(["adversarial"] if adversarial else [])])


LITERAL, CORRECTED = ", literal", ", corrected"
"""Ends of the titles of two columns: an attack as its authors ran it, and as it is meant."""
FIRST, LAST = 3, 1
"""So many rows beside the first, and beside the last, are named; more are counted."""


def lead(board: Board, names: Mapping[str, str]) -> str:
    """Say who is best and who is last; empty where no rows are compared. `names`: of rows, as people say them."""
    column = next(column for column in board.spec.column if column.title == board.spec.rank_by)
    values = {title: number.value for title in board.ranked() if (number := board.estimate(title, column)) is not None}
    if not values or (len(values) > 1 and not board.compared[column.title]):
        return ""
    numbers = {title: metric_for(column.metric).unit.text(value) for title, value in values.items()}
    best = next(iter(values))
    alike = [title for title in values if (board.planned(title) > 1) == (board.planned(best) > 1)]
    *_, last = alike
    first = [title for title in alike[1:] if board.ranks[title] == board.ranks[best] == 1]
    if len(first) == len(alike) - 1 > 0:
        ends = f"{named(names, best)} {numbers[best]} to {named(names, last)} {numbers[last]}"
        said = f"no row is clearly better than another ({ends})"
    else:
        which = "best " if len(values) > 1 else ""
        said = f"{which}{named(names, best)} {numbers[best]}{_beside(first, names, 'better', FIRST)}"
        if len(alike) > 1 and last not in first:
            others = [title for title in alike[1:-1] if board.ranks[title] is not None and title not in first]
            worst = [title for title in others if not board.beats(title, last, column)]
            said += f"; last {named(names, last)} {numbers[last]}{_beside(worst, names, 'worse', LAST)}"
    if apart := len(values) - len(alike):
        kind = "one training" if board.planned(best) > 1 else "several trainings"
        said += f"; not compared: {apart} row{'s' * (apart > 1)} of {kind}"
    return f"{column.title}: {said}."


def _beside(titles: Sequence[str], names: Mapping[str, str], than: str, most: int) -> str:
    """Name the rows that share a place, at most so many; names may hold commas."""
    rows = "; ".join(named(names, title) for title in titles) if len(titles) <= most else f"{len(titles)} other rows"
    return f" (not clearly {than} than {rows})" if titles else ""


def contrast(board: Board) -> str:
    """Say between which numbers all rows are as the authors ran the attack of the ranked column, and corrected.

    Rows count whose trainings all have both numbers. Empty where the column is not a corrected one.
    """
    title = board.spec.rank_by.removesuffix(CORRECTED)
    pair = [column for end in (LITERAL, CORRECTED) for column in board.spec.column if column.title == title + end]
    whole = [
        row.title
        for row in board.spec.rows
        if all(len(board.trainings(row.title, column)) == len(row.models) for column in pair)
    ]
    spans = []
    for column in pair:
        values = [number.value for row in whole if (number := board.estimate(row, column)) is not None]
        unit = metric_for(column.metric).unit
        ends = [unit.text(value) for value in (min(values), max(values))] if values else []
        spans += [ends[-1] if len(set(ends)) == 1 else f"{unit.number(min(values))} to {ends[-1]}"] if ends else []
    if len(spans) < 2:
        return ""
    what = metric_for(pair[0].metric).title
    return f"{title}, {what[0].lower()}{what[1:]}: {spans[0]} as the authors ran it, {spans[1]} corrected."
