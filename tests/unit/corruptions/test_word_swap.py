"""Swapped words of a running text: the authors' rule, transcribed; seeds; rates; what stays as it was."""

import numpy as np
import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.corruptions import CORRUPTIONS, corruption_for
from robustbench_kpca.corruptions.words.word_swap_by_line import STOP_WORDS, spans
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.text import Text
from robustbench_kpca.data.vocabulary import Vocabulary
from robustbench_kpca.tasks.language.compute import swapped_stream

BY_LINE, ANYWHERE = "word_swap_by_line", "word_swap_anywhere"
LINES = [
    "",
    "= Robert <unk> =",
    "",
    "He 's in the U.S. @-@ led film , with 1 @,@ 000 others ( see ' Nature ' ) .",
    "the of and a",
    "= =",
    "AAA AAA and AAA",
    " ".join(f"word{number}" for number in range(200)),
]


def words_of(token):
    """Divide a token as TextAttack does, letter by letter: another way to the same words."""
    found, word = [], ""
    for sign in token + " ":
        if sign.isalnum() or sign in "_'-*@":
            word += sign
            continue
        while word and word[0] in "'-_*@":
            word = word[1:]
        found += [word] if word else []
        word = ""
    return found


@pytest.fixture(scope="module")
def text():
    vocabulary = Vocabulary(
        ["<eos>", "<unk>", "AAA", *sorted({w for line in LINES for w in line.split()} - {"<unk>", "AAA"})]
    )
    stream = [vocabulary.numbers[word] for line in LINES for word in [*line.split(), "<eos>"]]
    return Text("lines", "test", np.array(stream), vocabulary)


@pytest.fixture(scope="module")
def grammar():
    return Text.require(load_data("grammar"))


def lines_of(stream, vocabulary):
    return " ".join(vocabulary.words[number] for number in stream).split("<eos>")[:-1]


@pytest.mark.parametrize(
    ("token", "words"),
    [("=", []), ("@-@", []), ("<unk>", ["unk"]), ("'s", ["s"]), ("U.S.", ["U", "S"]), ("mid-1990s", ["mid-1990s"]),
     ("Senjō", ["Senjō"]), ("--", []), ("o'", ["o'"])],
)  # fmt: skip
def test_words_within_a_token(token, words):
    assert [token[slice(*span)] for span in spans(token)] == words == words_of(token)


def test_every_line_loses_its_share_but_no_stop_words(text):
    for severity, rate in ((1, 0.015), (2, 0.025), (3, 0.05), (5, 0.2)):
        made, mask = swapped_stream(text, BY_LINE, severity, seed=3)
        for before, after in zip(lines_of(text.stream, text.vocabulary), lines_of(made, text.vocabulary), strict=True):
            old, new = before.split(), after.split()
            words = [word for token in old for word in words_of(token)]
            candidates = [word for word in words if word not in STOP_WORDS and word != "AAA"]
            changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
            assert {b for _, b in changed} <= {"AAA", "<unk>"}
            assert all(a not in STOP_WORDS for a, _ in changed)
            # <unk> and two words of one token may hide a change
            expected = min(max(int(rate * len(words)), 1), len(candidates))
            assert expected - sum(word in ("unk", "U", "S") for word in words) <= len(changed) <= expected
            if set(words) <= {f"word{number}" for number in range(200)}:
                assert len(changed) == expected
        assert np.array_equal(mask, made != text.stream)


def test_tokens_keep_what_is_around_a_word_and_lines_stand_alone(text):
    vocabulary = Vocabulary(["<eos>", "<unk>", "AAA", "U.S.", "'em", "'AAA"])
    marked = Text("lines", "test", np.array([3, 0, 4, 0, 1, 0]), vocabulary)
    made, mask = swapped_stream(marked, BY_LINE, 1, seed=0)
    assert made.tolist() == [1, 0, 5, 0, 1, 0]  # AAA.S. and <AAA> are not in the vocabulary, 'AAA is
    assert mask.tolist() == [True, False, True, False, False, False]
    cut = int(np.flatnonzero(text.stream == text.vocabulary.end)[3]) + 1
    part = Text("lines", "test", text.stream[:cut], text.vocabulary)
    for corruption in (BY_LINE, ANYWHERE):
        whole = swapped_stream(text, corruption, 5, seed=1)[0]
        assert np.array_equal(swapped_stream(part, corruption, 5, seed=1)[0], whole[:cut])


@pytest.mark.parametrize("corruption", [BY_LINE, ANYWHERE])
def test_the_same_seed_gives_the_same_stream_and_no_word_is_lost(grammar, corruption):
    made, mask = swapped_stream(grammar, corruption, 1, seed=0)
    again, _ = swapped_stream(grammar.take([7, 3]), corruption, 1, seed=0)
    other, _ = swapped_stream(grammar, corruption, 1, seed=1)
    assert np.array_equal(made, again)
    assert not np.array_equal(made, other)
    assert made.dtype == np.int32
    assert len(made) == len(grammar.stream)
    ends = grammar.stream == grammar.vocabulary.end
    assert np.array_equal(made == grammar.vocabulary.end, ends)
    assert set(made[mask]) == {grammar.vocabulary.numbers["AAA"]}
    higher, more = swapped_stream(grammar, corruption, 3, seed=0)
    assert (more | ~mask).all(), "what is swapped at a lower rate is swapped at a higher one"
    assert higher.tolist() != made.tolist()


def test_words_of_a_line_are_equally_likely_and_plain_rates_equal(grammar):
    for severity, rate in zip((1, 2, 3), (0.015, 0.025, 0.05), strict=False):
        mask = np.mean([swapped_stream(grammar, ANYWHERE, severity, seed)[1] for seed in range(3)], axis=0)
        words = grammar.stream[grammar.stream != grammar.vocabulary.end]
        free = (grammar.stream != grammar.vocabulary.end) & (grammar.stream != grammar.vocabulary.numbers["AAA"])
        error = np.sqrt(rate * (1 - rate) / (3 * len(words)))
        assert abs(mask[free].mean() - rate) < 4 * error
        stops = np.isin(grammar.stream, [grammar.vocabulary.numbers[word] for word in (".", "the", ",")])
        assert abs(mask[stops].mean() - rate) < 4 * error * np.sqrt(len(words) / stops.sum())
    # Each of four candidates is the one swapped in a quarter of 2,000 lines.
    rule = corruption_for(BY_LINE)
    words, places = ["the", "a1", "=", "a2", "a3", "a4"], []
    for line in range(2_000):
        draw = generator(sample_key(0, "", str(line))).bit_generator.random_raw
        places.append(next(iter(rule.replaced(words, 0.015, draw))))
    counts = np.bincount(places, minlength=6)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert np.square(counts[[1, 3, 4, 5]] - 500).sum() / 500 < 16.27  # chi-squared, 3 degrees, p = 0.001


def test_a_vocabulary_has_stop_words_and_the_new_word():
    assert len(STOP_WORDS) == 179
    assert {"i", "wouldn't", "should've", "ma", "s", "because"} <= STOP_WORDS
    assert not {"us", "would", "could", "The", "cannot", "also"} & STOP_WORDS
    stream = np.array([1, 2, 0])
    made, _ = swapped_stream(Text("t", "test", stream, Vocabulary(["<eos>", "old", "<unk>"])), BY_LINE, 1, 0)
    assert made.tolist() == [2, 2, 0]
    with pytest.raises(BadInputError, match="neither it nor <unk>"):
        swapped_stream(Text("t", "test", stream, Vocabulary(["<eos>", "old", "film"])), BY_LINE, 1, 0)


@pytest.mark.parametrize(
    ("name", "severity"), [("word_swap", 1), (BY_LINE, 6), (BY_LINE, -1), (CORRUPTIONS.names()[0], 1), ("swap", 1)]
)
def test_other_corruptions_and_severities_are_refused(text, name, severity):
    with pytest.raises(BadInputError) as caught:
        swapped_stream(text, name, severity, 0)
    assert "\n" not in str(caught.value)
