"""The Markov source of `grammar`: its entropies in closed form, and the text that is drawn from it."""

import math

import numpy as np
import pytest
from markov_models import true_log_probabilities

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.sets import grammar
from robustbench_kpca.data.sets.grammar import MarkovSource
from robustbench_kpca.data.text import Text


def test_entropies_of_chains_in_closed_form():
    # Leaves word 0 with probability 1/4 and word 1 with probability 1/8: frequencies 1/3 and 2/3.
    chain = np.array([[3, 1], [1, 7]])
    source = MarkovSource(np.stack([chain, chain]))

    def h(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    assert source.entropy() == pytest.approx(h(1 / 4) / 3 + h(1 / 8) * 2 / 3, abs=1e-12)
    assert source.entropy(1) == pytest.approx(source.entropy(), abs=1e-12)
    assert source.entropy(0) == pytest.approx(h(1 / 3), abs=1e-12)
    # The word before the last one comes again in 9 of 10 cases.
    weights = np.empty((2, 2, 2), np.int64)
    for a in range(2):
        weights[a, :] = [9, 1] if a == 0 else [1, 9]
    source = MarkovSource(weights)
    assert source.entropy() == pytest.approx(-0.9 * math.log(0.9) - 0.1 * math.log(0.1), abs=1e-12)
    assert source.entropy(1) == pytest.approx(math.log(2), abs=1e-12)
    assert source.entropy(0) == pytest.approx(math.log(2), abs=1e-12)


def test_words_are_drawn_by_weight_and_need_the_two_before():
    weights = np.broadcast_to(np.array([1, 0, 2, 5]), (4, 4, 4))
    drawn = list(MarkovSource(weights).draw(0, "test", 8_000, (0, 0)))
    assert np.abs(np.bincount(drawn, minlength=4) - [1_000, 0, 2_000, 5_000]).max() < 4 * math.sqrt(8_000 / 4)
    assert drawn[:100] == list(MarkovSource(weights).draw(0, "test", 100, (0, 0)))
    assert drawn[:100] != list(MarkovSource(weights).draw(1, "test", 100, (0, 0)))
    source = grammar.source()
    bits = [source.entropy(memory) for memory in range(3)]
    assert bits[0] > bits[1] + 1 > bits[2] + 1.2
    assert math.exp(bits[2]) == pytest.approx(7.2574, abs=1e-4)
    for closing in (grammar.vocabulary().end, grammar.vocabulary().numbers["."]):
        rows = source.weights[:, closing]
        assert (rows == rows[0]).all()
    assert source.weights.min() > 0
    assert np.exp(true_log_probabilities()).sum(axis=-1) == pytest.approx(np.ones((50, 50)))


@pytest.mark.parametrize("split", grammar.SPLITS)
def test_the_true_source_has_the_entropy_rate_on_its_text(split):
    data = Text.require(load_data("grammar", split))
    words = data.stream
    assert len(words) == grammar.SPLITS[split] + 1
    assert words[0] == data.vocabulary.end
    nll = -true_log_probabilities()[words[:-2], words[1:-1], words[2:]]
    # Sums over whole articles are independent of each other, because a new line remembers nothing.
    inside = data.articles[2:]
    error = math.sqrt(np.square(np.bincount(inside, nll - data.entropy)).sum()) / len(nll)
    assert abs(nll.mean() - data.entropy) < 3 * error
    assert error < 0.02


def test_articles_are_whole_lines_of_some_hundred_words():
    data = Text.require(load_data("grammar", "val"))
    assert {"AAA", "<unk>"} <= set(data.vocabulary.words)
    lengths = np.bincount(data.articles)
    assert len(lengths) > 40
    assert lengths[:-1].min() >= 300
    last = np.flatnonzero(np.diff(data.articles))
    assert (data.stream[last] == data.vocabulary.end).all()


@pytest.mark.parametrize(("source", "split"), [("grammar:town", None), ("grammar", "dev")])
def test_grammar_takes_no_folder_and_has_three_splits(source, split):
    with pytest.raises(BadInputError, match=r"town|dev"):
        load_data(source, split)
