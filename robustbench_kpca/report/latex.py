"""A board as a table of LaTeX: rows are models, columns protocols; it needs `booktabs` and no other package."""

import re
import unicodedata
from typing import Any

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.lead import named, spoken
from robustbench_kpca.report.notes import samples, values_of
from robustbench_kpca.report.table import BROKEN, FLAGGED, INACTIVE, QUICK, UNAUDITED, all_marks, heading, shown

_ESCAPED = {
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$",
    "|": "$|$", "`": "", "“": "``", "”": "''", '"': "''", "–": "--", "−": "$-$", "·": r"$\cdot$", "×": r"$\times$",
    "↓": r"$\downarrow$", "ε": r"$\varepsilon$", "λ": r"$\lambda$", "μ": r"$\mu$",
}  # fmt: skip
_MARKS = {
    FLAGGED: ("f", "flagged by the audit for masked gradients"),
    INACTIVE: ("i", "with a mechanism that the audit found inactive"),
    QUICK: ("q", "audited by the quick checks alone"),
    UNAUDITED: ("u", "not audited"),
    BROKEN: ("x", "lowered by images that others found"),
}
_TABLE = r"""\begin{{table}}
\centering
\caption{{{caption}}}
\begin{{tabular}}{{{columns}}}
\toprule
{head} \\
\midrule
{rows} \\
\bottomrule
\end{{tabular}}
\end{{table}}
"""


def latex(board: Board, *, intervals: bool = False) -> str:
    """Return the table; bold is what the board has in bold, and letters beside a name are the marks of its audits.

    `intervals`: whether 95 % intervals stand behind the values.
    """
    names, rows = spoken(board), shown(board)
    marks = {row.title: [_MARKS[mark] for mark in all_marks(board, row)] for row in board.spec.rows}
    legend = sorted({mark for row in rows for mark in marks[row["model"]]})
    lines = []
    for row in rows:
        letters = ",".join(letter for letter, _ in marks[row["model"]])
        name = "{}" + escaped(named(names, row["model"])) + (f"$^{{{letters}}}$" if letters else "")
        pairs = zip(board.columns, row["columns"], strict=True)
        # A name that begins with a bracket would be an argument of the line before, so an empty group stands before it.
        lines.append(" & ".join([name, *(_cell(column, cell, intervals) for column, cell in pairs)]))
    return _TABLE.format(
        caption="".join([_caption(board, intervals), *(f" $^{{{letter}}}$: {text}." for letter, text in legend)]),
        columns=f"l{'r' * len(board.columns)}",
        head=" & ".join(["Model", *map(escaped, _heads(board))]),
        rows=" \\\\\n".join(lines),
    )


def escaped(text: str) -> str:
    """Return text as LaTeX shows it, norms as symbols; a letter that its fonts lack becomes its number, `U+4E00`."""
    letters = "".join(_ESCAPED.get(letter, _letter(letter)) for letter in text)
    return re.sub(r"\bl([012]) ", r"$\\ell_{\1}$ ", letters.replace("linf ", r"$\ell_{\infty}$ "))


def _letter(letter: str) -> str:
    if letter.isascii():
        return letter if letter.isprintable() else " "
    latin = unicodedata.category(letter).startswith("L") and ord(letter) < 0x180
    return letter if latin else f"U+{ord(letter):04X}"


def _heads(board: Board) -> list[str]:
    """Return short headings: the attack and its ball for the name of a protocol, and no n, which the caption has."""
    full = [heading(board, column) for column in board.columns]
    short = [
        head.replace(column.title, _short(board, column)) for head, column in zip(full, board.columns, strict=True)
    ]
    return short if len(set(short)) == len(short) else full


def _short(board: Board, column: Column) -> str:
    title, scenario = column.title.partition(" · n = ")[0], board.spec.needed(column)[0].resolve()[1]
    if title != column.protocol or not isinstance(scenario, Attack):
        return title
    return f"{scenario.title.partition(',')[0]} {scenario.threat}"


def _cell(column: Column, cell: dict[str, Any], intervals: bool) -> str:
    text = cell["text"]
    if cell["value"] is not None and column.proven is None and not intervals:
        text = f"{metric_for(column.metric).unit.number(cell['value'])} {cell['part']}".rstrip()
    return rf"\textbf{{{escaped(text)}}}" if cell["best"] else escaped(text)


def _caption(board: Board, intervals: bool) -> str:
    """Say what the values are of: samples and their number, budgets of attacks, seeds, and what is bold."""
    spec = board.spec
    scenarios = [needed.resolve()[1] for column in board.columns for needed in spec.needed(column)]
    balls = dict.fromkeys(str(scenario.threat) for scenario in scenarios if isinstance(scenario, Attack))
    trained = sorted({seed for row in spec.rows if len(row.models) > 1 for seed in row.by_seed})
    parts = [
        f"{spec.title}. {values_of(board)} of {samples(board)}",
        "95 % intervals in brackets" if intervals else "",
        "[certified, left by the attack] in columns with a certificate"
        if any(each.proven for each in spec.column)
        else "",
        f"ε: {', '.join(balls)}" if balls else "",
        f"evaluated with seed {spec.seed}",
        f"rows of several trainings are means over the seeds {', '.join(map(str, trained))}" if trained else "",
    ]
    bold = " Bold: better than every other row by a paired test." if any(board.winners.values()) else ""
    return escaped(f"{'; '.join(filter(None, parts))}.{bold}")
