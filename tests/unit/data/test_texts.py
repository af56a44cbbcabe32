"""Texts from tables: vocabulary of the training part, words, padding, refusals."""

import csv

import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.io.text_table import MOST_LETTERS
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.sets import texts
from robustbench_kpca.data.sets._byte_texts import _words


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


GENERATED = "length=64,test=40,val=4,train=4"


def decoded(data, length):
    """Return the texts of every sample, decoded again; padding is 0, and a byte b is b + 2."""
    rows = [TOKENS.array(data.image(index)) for index in range(len(data))]
    return [[bytes((part[part > 0] - 2).tolist()).decode() for part in row.reshape(-1, length)] for row in rows]


def test_a_text_is_its_bytes(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nnaïve film\tpos\nbad\tneg\n\tneg\n", "utf-8")
    data = load_data(f"bytes:length=12:{tmp_path}", "train")
    assert data.images[0, 0, 0].tolist() == [byte + 2 for byte in "naïve film".encode()] + [0]
    assert decoded(data, 12) == [["naïve film"], ["bad"], [""]]
    assert (data.labels, data.class_names) == ([1, 0, 0], ("neg", "pos"))
    assert load_data(f"bytes:{tmp_path}", "train").images.shape == (3, 1, 1, 4096)
    assert decoded(load_data(f"bytes:length=8:{tmp_path}", "train"), 8)[0] == ["naïve f"]


def test_published_pairs_have_no_row_of_names(tmp_path):
    rows = '1.0\t17\t4\tOn "parsing"\tOn chunks\n0.0\t4\t9\tOn chunks\tOn speech, and its recognition\n'
    for part in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_text(rows if part == "train" else rows.splitlines()[0])
    train, val, test = (load_data(f"retrieval:length=20:{tmp_path}", part) for part in ("train", "val", "test"))
    assert decoded(train, 20) == [['On "parsing"', "On chunks"], ["On chunks", "On speech, and its r"]]
    assert (train.labels, val.labels, len(test)) == ([1, 0], [1], 1)
    assert train.images.shape == (2, 1, 1, 40)


def test_pairs_of_ones_own_name_their_columns(tmp_path):
    (tmp_path / "train.csv").write_text('text2,label,text1\n"b, c",same,a\nd,other,e\n' + "f" * 200_000 + ",same,g\n")
    (tmp_path / "test.csv").write_text("text1,text2,label\na,b,third\n")
    data = load_data(f"retrieval:length=8:{tmp_path}", "train")
    assert decoded(data, 8) == [["a", "b, c"], ["e", "d"], ["g", "f" * 8]]
    assert (data.labels, data.class_names) == ([1, 0, 1], ("other", "same"))
    with pytest.raises(BadInputError, match="class 'third' in test"):
        load_data(f"retrieval:length=8:{tmp_path}")


def topic(text):
    """Return the topic of which the most whole words of a text are."""
    counts = [sum(word in _words(number) for word in text.split()[:-1]) for number in range(4)]
    return max(range(4), key=counts.__getitem__)


def test_generated_texts_are_on_their_topics():
    data = load_data(f"bytes:{GENERATED}")
    assert [topic(text) for (text,) in decoded(data, 64)] == data.labels
    pairs = load_data(f"retrieval:{GENERATED}")
    assert [int(topic(one) == topic(other)) for one, other in decoded(pairs, 64)] == pairs.labels == [0, 1] * 20
    assert pairs.name == "retrieval-length64-test40-val4-train4"
    assert {text for pair in decoded(pairs, 64) for text in pair}.isdisjoint(
        text for pair in decoded(load_data(f"retrieval:{GENERATED}", "val"), 64) for text in pair
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("bytes:length=4", "length = 4"),
        ("bytes:width=4", "NAME=NUMBER"),
        ("retrieval:nowhere", "no folder nowhere"),
        ("retrieval:train=5:FOLDER", "no size but the length"),
        ("retrieval:FOLDER", "a column text1"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, source, message):
    (tmp_path / "train.tsv").write_text("text\tlabel\nx\t1\n")
    (tmp_path / "test.tsv").write_text("text\tlabel\nx\t1\n")
    with pytest.raises(BadInputError, match=message) as caught:
        load_data(source.replace("FOLDER", str(tmp_path)))
    assert "\n" not in str(caught.value)
