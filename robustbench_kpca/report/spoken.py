"""The names of rows as people say them: `rpc_symvit_digits_adv` is "RPC-SymViT, adversarial"."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from robustbench_kpca.models.families import ARCHITECTURES

if TYPE_CHECKING:
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


def spoken(board: "Board") -> dict[str, str]:
    """Return row title -> name, of rows that are named after an architecture of one size; others keep their title.

    A page loads no plugin for a name.
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
