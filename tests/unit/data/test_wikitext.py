"""WikiText from a folder: vocabulary, stream, articles, what is kept, and files that are refused."""

import numpy as np
import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.io import encoded
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.sets import wikitext103
from robustbench_kpca.data.text import Text
from robustbench_kpca.tasks.language.compute import swapped_stream

TRAIN = " \n = A town = \n \n The town , the <unk> and the river . \n \n = = History = = \n \n AAA , a town . \n"
VALID = " \n = River = \n \n The river A . \n \n = Town = \n \n a lake . \n \n = = Lakes = = \n \n = x + y = \n a a \n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "wiki.train.tokens").write_text(TRAIN)
    (tmp_path / "wiki.valid.tokens").write_text(VALID)
    return tmp_path


def text_of(folder, split="val", name="wikitext103"):
    return Text.require(load_data(f"{name}:{folder}", split))


def words(text):
    return [text.vocabulary.words[number] for number in text.stream]


def test_words_and_lines_of_the_stream(folder):
    found = text_of(folder).vocabulary.words
    # six "=", then three commas, "town" and "." in the order of appearance ("the" twice, "The" is another word)
    assert found == ("<eos>", "=", "town", ",", "the", ".", "A", "The", "<unk>", "and", "river", "History", "AAA", "a")
    text = text_of(folder, "train")
    assert words(text)[:8] == ["<eos>", "=", "A", "town", "=", "<eos>", "<eos>", "The"]
    assert words(text).count("<eos>") == TRAIN.count("\n")
    assert len(text.stream) == sum(len(line.split()) + 1 for line in TRAIN.splitlines())
    text = text_of(folder)
    assert words(text)[1:5] == ["=", "<unk>", "=", "<eos>"]
    assert text.name == "wikitext103-excerpt"
    assert "14 words, from wiki.train.tokens" in text.notes[0]
    assert "7 words of the text" in text.notes[0]  # River, Town, lake, Lakes, x, +, y
    assert text.take([0]).notes == text.notes


def test_articles_begin_at_headings_and_the_last_line_needs_no_end(folder):
    text = text_of(folder)
    first = np.flatnonzero(np.diff(text.articles)) + 1
    assert len(first) == 1
    assert VALID.index("= Town =") == len(" \n = River = \n \n The river A . \n \n ")
    assert words(text)[first[0] - 1 : first[0] + 3] == ["<eos>", "=", "<unk>", "="]
    assert text.articles[first[0]] == 1
    before = text_of(folder).stream
    (folder / "wiki.valid.tokens").write_text(VALID.removesuffix("\n"))
    assert np.array_equal(text_of(folder).stream, before)
    (folder / "wiki.valid.tokens").write_bytes(VALID.replace("\n", "\r\n").encode())
    assert np.array_equal(text_of(folder).stream, before)


def test_a_part_of_train_under_another_name_is_taken(folder, monkeypatch):
    whole = text_of(folder)
    (folder / "wiki.train.tokens").rename(folder / "wiki.train.first.tokens")
    monkeypatch.setattr(wikitext103, "LEAST", 1)
    part = text_of(folder)
    assert np.array_equal(part.stream, whole.stream)
    assert "from wiki.train.first.tokens" in part.notes[0]
    monkeypatch.setattr(wikitext103, "LEAST", 2)
    fewer = text_of(folder)
    # <unk> and AAA occur once and stay, since protocols give them a meaning
    assert fewer.vocabulary.words == ("<eos>", "=", "town", ",", "the", ".", "<unk>", "AAA")
    assert words(fewer)[:9] == ["<eos>", "=", "<unk>", "=", "<eos>", "<eos>", "<unk>", "<unk>", "<unk>"]
    assert np.count_nonzero(fewer.stream == fewer.vocabulary.numbers["<unk>"]) == 13
    assert "13 words of the text" in fewer.notes[0]
    (folder / "wiki.train.second.tokens").write_text(TRAIN)
    with pytest.raises(BadInputError, match=r"no file .*wiki\.train\.tokens"):
        text_of(folder)


def test_a_set_of_the_published_counts_has_the_plain_name(folder, monkeypatch):
    monkeypatch.setattr(wikitext103, "VOCABULARY", 14)
    monkeypatch.setattr(wikitext103, "WORDS", {"train": 40, "val": 1_000, "test": 9})
    text = text_of(folder)
    assert (text.name, text.notes, text.expected) == ("wikitext103", (), 16)


def test_large_files_are_read_once_and_known_by_their_content(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(encoded, "KEPT_FROM", 0)
    monkeypatch.setenv("RBK_CACHE", str(tmp_path / "kept"))
    plain = text_of(folder)
    assert len([path for path in (tmp_path / "kept").rglob("*") if path.is_file()]) == 2
    monkeypatch.setattr(encoded, "lines_of", None)
    again = text_of(folder)
    assert np.array_equal(again.stream, plain.stream)
    assert again.vocabulary.words == plain.vocabulary.words
    assert (again.notes, again.digest()) == (plain.notes, plain.digest())
    monkeypatch.undo()
    monkeypatch.setattr(encoded, "KEPT_FROM", 0)
    monkeypatch.setenv("RBK_CACHE", str(tmp_path / "kept"))
    (folder / "wiki.train.tokens").write_text("town town town town \n" + TRAIN)
    assert text_of(folder).vocabulary.words[1] == "town"


def test_a_cache_that_cannot_be_written_is_not_needed(folder, monkeypatch):
    monkeypatch.setattr(encoded, "KEPT_FROM", 0)
    monkeypatch.setenv("RBK_CACHE", str(folder / "wiki.train.tokens" / "below"))
    assert len(text_of(folder).stream) > 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "at least two words"),
        (b"the \n town \xff . \n", "line 2 cannot be read .no text in UTF-8 from byte 7 on"),
        (b"the \n to\0wn \n", "line 2 has a NUL"),
        (b"the " * 50 + b"\n", "line 1 has more than 100 bytes"),
    ],
)  # fmt: skip
def test_files_that_are_no_text_are_refused(folder, content, message, monkeypatch):
    monkeypatch.setattr(encoded, "LONGEST", 100)
    (folder / "wiki.valid.tokens").write_bytes(content)
    with pytest.raises(BadInputError, match=message) as caught:
        text_of(folder)
    assert "\n" not in str(caught.value)


def test_sets_of_other_words(folder):
    (folder / "wiki.train.tokens").write_text("the town \n")
    with pytest.raises(BadInputError, match="words that the vocabulary of wiki"):
        text_of(folder)
    (folder / "wiki.train.tokens").write_text(TRAIN.replace("AAA", "town"))
    text = text_of(folder)
    assert "no 'AAA'" in text.notes[1]
    made, mask = swapped_stream(text, "word_swap_by_line", 5, 0)
    assert set(made[mask]) == {text.vocabulary.numbers["<unk>"]}
    (folder / "wiki.test.raw").write_text(VALID)
    with pytest.raises(BadInputError, match=r"the .raw files have no <unk>") as caught:
        text_of(folder, "test")
    assert f"give wikitext103:{'FOLDER'}" in str(caught.value)


@pytest.mark.slow
def test_the_real_files_have_the_published_counts(real_data):
    folder = real_data("wikitext103")
    found = {}
    for split, file in (("val", "wiki.valid.tokens"), ("test", "wiki.test.tokens")):
        if (folder / file).is_file():
            text = text_of(folder, split)
            found[split] = len(text.stream)
            assert found[split] == wikitext103.WORDS[split]
            assert text.articles.max() + 1 == 60
    assert found
