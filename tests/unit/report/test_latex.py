"""A board in LaTeX: what a small parser reads of the table is what the board shows."""

import re
from dataclasses import replace

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.protocols.presets import board_path
from robustbench_kpca.report.latex import escaped, latex
from robustbench_kpca.report.lead import named, spoken
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.table import shown

BOARDS = ("digits-attacks", "digits-bracket")


def without_escapes(text):
    return re.sub(r"\\[&%$#_{}]", "", text)


def table(text):
    bare = without_escapes(text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[#%~]", bare)
    opened = []
    for verb, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        opened.append(name) if verb == "begin" else opened.remove(name)
    assert not opened
    spec = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1]
    rows = [re.split(r"(?<!\\)&", line[:-2]) for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(row) for row in rows} == {len(spec)}
    caption = next(line for line in text.splitlines() if line.startswith(r"\caption"))
    return [[cell.strip() for cell in row] for row in rows], caption


@pytest.fixture(scope="module", params=BOARDS)
def board(request):
    return load_board(request.param)


def test_the_table_says_what_the_board_shows(board):
    (head, *rows), caption = table(latex(board, intervals=True))
    assert len(head) == 1 + len(board.columns)
    names = spoken(board)
    for row, expected in zip(rows, shown(board), strict=True):
        assert row[0].partition("$^")[0] == "{}" + escaped(named(names, expected["model"]))
        bold = [cell.startswith(r"\textbf{") for cell in row[1:]]
        assert bold == [cell["best"] for cell in expected["columns"]]
        texts = [
            cell.removeprefix(r"\textbf{").removesuffix("}") if best else cell
            for cell, best in zip(row[1:], bold, strict=True)
        ]
        assert texts == [escaped(cell["text"]) for cell in expected["columns"]]
    for wanted in (f"{board.runs[0].record.spec.data.n} ", r"$\varepsilon$: ", f"seed {board.spec.seed}", "95"):
        assert wanted in caption, wanted


def test_intervals_are_an_option_and_no_name_breaks_the_table(board):
    (_, *rows), caption = table(latex(board))
    assert "intervals" not in caption
    plain = [column.proven is None for column in board.columns]
    assert not any("[" in cell for row in rows for cell, without in zip(row[1:], plain, strict=True) if without)
    # A row called like an argument of the line before it, a title that would end the caption.
    spec = board.spec.model_copy(update={"title": r"a} \end{table} 100 % $x_1$ \input{/etc/passwd} & # ~"})
    rows, caption = table(latex(replace(board, spec=spec)))
    assert r"a\} \textbackslash{}end\{table\}" in caption
    assert not any(row[0].startswith(("[", "*")) for row in rows)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a_b & 5 % {x} $y$ #1", r"a\_b \& 5 \% \{x\} \$y\$ \#1"),
        (r"\z ~ ^", r"\textbackslash{}z \textasciitilde{} \textasciicircum{}"),
        ("λ = 4 · n ↓ é", r"$\lambda$ = 4 $\cdot$ n $\downarrow$ é"),
        ("linf 8/255, l2 1", r"$\ell_{\infty}$ 8/255, $\ell_{2}$ 1"),
        ("一\n`x`", "U+4E00 x"),
    ],
)  # fmt: skip
def test_special_letters_are_escaped(text, expected):
    assert escaped(text) == expected


def test_by_command(tmp_path, capsys):
    records = board_path("digits-attacks").parent / "records"
    assert main(["board", "report", str(records), "--to", "latex", "-o", str(tmp_path / "a")]) == 0
    assert main(["board", "render", "digits-attacks", "--to", "latex", "-o", str(tmp_path / "b"), "--intervals"]) == 0
    for folder in ("a", "b"):
        (only,) = (tmp_path / folder).iterdir()
        assert only.name == "board.tex"
        rows, caption = table(only.read_text())
        assert "64" in caption
        assert any(title.startswith("PGD-20") for title in rows[0])
        assert not any("n = " in title for title in rows[0])
