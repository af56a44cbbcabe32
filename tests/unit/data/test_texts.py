"""Texts from tables: vocabulary of the training part, words, padding, refusals."""

import csv

import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.io.text_table import MOST_LETTERS
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.sets import texts


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.tsv").write_text('sentence\tlabel\nA "good" film , a good one\t1\nbad film\t0\nbad !\t0\n')
    (tmp_path / "dev.csv").write_text('id,review,sentiment\n7,"It\'s good,\nnot bad",1\n8,Film film,0\n')
    return tmp_path


def words(data):
    return [TOKENS.array(data.image(i)) for i in range(len(data))]


def test_words_are_numbered_by_their_frequency_in_train(folder):
    train, val = (load_data(f"texts:{folder}", part) for part in ("train", "val"))
    # twice each, in alphabetical order: the quote sign, a, bad, film, good; then once: ! , one
    numbers = dict(zip(['"', "a", "bad", "film", "good", "!", ",", "one"], range(2, 10), strict=True))
    first = [numbers[w] for w in ["a", '"', "good", '"', "film", ",", "a", "good", "one"]]
    assert words(train)[0].tolist() == first + [0] * (texts.LENGTH - 9)
    assert words(val)[0][:6].tolist() == [1, numbers["good"], numbers[","], 1, numbers["bad"], 0]
    assert (train.labels, val.labels, val.class_names) == ([1, 0, 0], [1, 0], ("0", "1"))
    assert val.name == f"texts-{folder.name}".replace("_", "-")
    before = csv.field_size_limit()
    assert len(load_data(f"texts:{folder}", "val")) == 2
    assert csv.field_size_limit() == before < MOST_LETTERS


def test_long_texts_are_cut_and_rare_words_left_out(folder, monkeypatch):
    monkeypatch.setattr(texts, "LENGTH", 4)
    monkeypatch.setattr(texts, "VOCABULARY", 4)
    assert [row.tolist() for row in words(load_data(f"texts:{folder}", "train"))] == [
        [3, 2, 1, 2],
        [1, 1, 0, 0],
        [1, 1, 0, 0],
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("test.tsv", "sentence\tindex\nx\t1\n", "a column label or sentiment"),
        ("test.tsv", "", "columns none"),
        ("test.tsv", "text\tlabel\nno label\n", "line 2: 1 columns"),
        ("test.tsv", "text\tlabel\nx\t \n", "line 2"),
        ("test.tsv", "text\tlabel\nx\t5\n", "class '5' in test"),
        ("test.txt", "text\tlabel\nx\t1\n", "0 tables of test"),
        ("test.csv", "text,label\nx\udcff,1\n", "cannot be read"),
    ],
)
def test_bad_tables_are_refused(folder, name, text, message):
    (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInputError, match=message) as caught:
        load_data(f"texts:{folder}")
    assert "\n" not in str(caught.value)
