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
_LAYERS = {"all": "all layers", "sym": "symmetric"}


def spoken(board: "Board") -> dict[str, str]:
    """Return row title -> name, of rows that are named after an architecture of one size; others keep their title."""
    names = {row.title: said for row in board.spec.rows if (said := _said(row.title)) is not None}
    sizes = {ARCHITECTURES[_architecture(title)][1] for title in names}
    same = len(sizes) == 1 and len(set(names.values())) == len(names)
    return names if same else {}


def named(names: Mapping[str, str], title: str) -> str:
    """Return the name of a row."""
    return names.get(title, title)


def _architecture(title: str) -> str:
    return title.removesuffix("_adv")


def _said(title: str) -> str | None:
    """Return what people say; None where the title is no architecture."""
    base = _architecture(title)
    if base not in ARCHITECTURES:
        return None
    words = ARCHITECTURES[base][0].split("_")
    said = "-".join(filter(None, (_WORDS.get(word, word) for word in words)))
    beside = [_LAYERS[word] for word in words if word in _LAYERS] + (["adversarial"] if base != title else [])
    return ", ".join([said, *beside])
