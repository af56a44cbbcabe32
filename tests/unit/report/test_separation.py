"""Which attribute decides a board: made numbers, and the board of digits."""

from types import SimpleNamespace

import pytest
from stand_ins import posing_as

from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.separation import separation


def board(models, metric="robust_accuracy", clear=0.1):
    values = {f"m{i}": value for i, (*_, value) in enumerate(models)}
    low = metric == "perplexity"
    about = {
        f"m{i}": SimpleNamespace(attention=attention, adversarial=adversarial, training=None, backbone=None)
        for i, (attention, adversarial, _) in enumerate(models)
    }
    rows = [SimpleNamespace(title=title, models=(title,)) for title in values]
    column = posing_as(Column, title="PGD", metric=metric)
    return posing_as(
        Board,
        spec=SimpleNamespace(column=[column], rank_by="PGD", rows=rows, described=about.__getitem__),
        ranked=lambda: sorted(values, key=values.__getitem__, reverse=not low),
        estimate=lambda title, _: SimpleNamespace(value=values[title]),
        beats=lambda a, b, _: (values[b] - values[a] if low else values[a] - values[b]) > clear,
    )


DIGITS = [
    ("A", True, 0.93), ("B", True, 0.95), ("A", True, 0.97), ("A", False, 0), ("B", False, 0.02), ("A", False, 0.03),
]  # fmt: skip


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (
            DIGITS,
            "PGD: adversarial training decides: 93 to 97 % against 0 to 3 %; the attention does not.",
        ),
        (
            [("A", True, 0.9), ("A", False, 0.88), ("B", True, 0.5), ("B", False, 0.52)],
            "PGD: the attention decides: A 88 to 90 % against B 50 to 52 %.",
        ),
        (
            [("A", False, 0.9), ("A", False, 0.9), ("B", True, 0.5), ("B", True, 0.52)],
            "PGD: adversarial training decides: 90 % against 50 to 52 % with it.",
        ),
        ([("A", True, 0.9), ("A", False, 0.52), ("B", True, 0.88), ("B", False, 0.85)], ""),  # they overlap
        ([("A", True, 0.6), ("A", True, 0.6), ("B", False, 0.55), ("B", False, 0.55)], ""),  # not clearly
        ([("A", True, 0.9), ("A", False, 0.1), ("B", False, 0.1)], ""),  # one row alone
        ([("A", None, 0.9), (None, True, 0.1), ("B", False, 0.1), ("A", True, 0.9)], ""),  # not stated of every row
    ],
)  # fmt: skip
def test_an_attribute_decides_where_each_row_beats_each(models, said):
    assert separation(board(models)) == said


def test_perplexities_and_the_headline_of_the_digits():
    made = board([("A", True, 20), ("A", True, 21), ("B", False, 5), ("B", False, 6)], "perplexity")
    assert separation(made) == "PGD: adversarial training decides: 5.00 to 6.00 against 20.00 to 21.00 with it."
    said = "PGD-20 8/255: adversarial training decides: 93 to 97 % against 0 to 3 %; the attention does not."
    assert separation(load_board("digits")) == said
