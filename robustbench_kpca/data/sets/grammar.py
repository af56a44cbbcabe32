"""Generated: text of 50 words from a Markov source with a memory of two, whose best possible perplexity is known.

After the words a and b, the next word w has a weight that is a product: how often the kind of w follows the kind of b,
how well w goes with b, and how well it goes with a; the last two are drawn at random. So a model has to look two
words back, and further back there is nothing to see. `<unk>` takes about 1 % of every distribution and "AAA" 0.1 %, and
no word has probability 0. What comes after a full stop or after `<eos>` does not depend on anything before.

    entropy(2) is the least mean -log p of any model; entropy(1) that of a model that sees one word only.

A line is a paragraph of several sentences and ends in `<eos>`. An article is a number of whole lines, of 300 words or
a little more. The stream of each part begins with `<eos>`.

The entropy rate of such a source is known exactly, so the best possible perplexity of a language model is known, too
(Shannon 1948, "A Mathematical Theory of Communication", section 7; Cover & Thomas 2006, "Elements of Information
Theory", section 4.2).
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.text import Text
from robustbench_kpca.data.vocabulary import END, UNKNOWN_WORD, Vocabulary

_ROUNDS = 100_000


@dataclass(frozen=True, eq=False)
class MarkovSource:
    """Words by number; after the words a, b the next one is w with probability weights[a, b, w] / sum(weights[a, b]).

    Attributes:
        weights: whole numbers of at least 0, shape (words, words, words), not all 0 for any a, b. So the words drawn
            are the same on every machine.
    """

    weights: NDArray[np.int64]

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """p(w | a, b) at [a, b, w]."""
        shares: NDArray[np.float64] = self.weights / self.weights.sum(axis=-1, keepdims=True)
        return shares

    @cached_property
    def stationary(self) -> NDArray[np.float64]:
        """Frequency of every pair of words in the long run, q(a, b), shape (words, words).

        It solves q(b, w) = sum_a q(a, b) p(w | a, b), here by iteration from equal frequencies. The source must be able
        to come from every pair that it returns to, to every other, and not in periods only.
        """
        words = len(self.weights)
        q = np.full((words, words), words**-2.0)
        for _ in range(_ROUNDS):
            after: NDArray[np.float64] = np.einsum("ab,abw->bw", q, self.probabilities)
            if np.abs(after - q).sum() < 1e-14:
                return after
            q = after
        raise ValueError(f"the frequencies of pairs did not settle in {_ROUNDS} rounds")

    def entropy(self, memory: int = 2) -> float:
        """Return the least mean -log p of a word, in nats, for a model that sees the last `memory` words (0, 1 or 2).

        With 2 it is the entropy rate of the source: H = -sum q(a, b) p(w | a, b) log p(w | a, b).
        """
        triples = self.stationary[..., None] * self.probabilities  # q(a, b, w)
        joint = triples.sum(axis=tuple(range(2 - memory)))
        before = joint.sum(axis=-1, keepdims=True)
        shares = np.divide(joint, before, out=np.ones_like(joint), where=joint > 0)
        return float(-(joint * np.log(shares)).sum())

    def draw(self, seed: int, scope: str, count: int, start: tuple[int, int]) -> Iterator[int]:
        """Yield `count` words after the two of `start`; they are a function of the arguments only.

        A word takes 64 random bits u: it is the first whose cumulative weight exceeds floor(u sum / 2^64).
        """
        sums = np.cumsum(self.weights, axis=-1).tolist()
        a, b = start
        for bits in generator(sample_key(seed, scope, "")).bit_generator.random_raw(count).tolist():
            row = sums[a][b]
            a, b = b, bisect_right(row, (bits * row[-1]) >> 64)
            yield b


SPLITS = {"test": 20_480, "val": 20_480, "train": 204_800}
"""Number of words that are predicted."""
SEED = 0
BLOCK = 16
"""An attacked block is read with the one before it, and small models read 32 words at once."""
ARTICLE = 300
KINDS = {
    "end": END,
    "noun": f"{UNKNOWN_WORD} AAA river city king song ship army church film bridge school",
    "article": "the a this each",
    "adjective": "old small red quiet bright cold",
    "verb": "crossed built saw found left wrote kept gave",
    "preposition": "in of with from near",
    "adverb": "later often slowly never",
    "pronoun": "he she they it",
    "conjunction": "and but because",
    "comma": ",",
    "stop": ".",
    "number": "one",
}
FOLLOWS = {
    "end": {"article": 6, "pronoun": 3, "number": 1},
    "noun": {"verb": 8, "preposition": 5, "comma": 2, "conjunction": 2, "stop": 4},
    "article": {"noun": 7, "adjective": 5},
    "adjective": {"noun": 9, "adjective": 1, "comma": 1},
    "verb": {"article": 8, "adverb": 3, "preposition": 3, "pronoun": 1, "stop": 1},
    "preposition": {"article": 8, "noun": 3, "number": 1},
    "adverb": {"verb": 3, "comma": 2, "stop": 5, "adjective": 2},
    "pronoun": {"verb": 8, "adverb": 3},
    "conjunction": {"article": 5, "pronoun": 5, "adverb": 1},
    "comma": {"conjunction": 5, "article": 3, "adverb": 2, "adjective": 2},
    "stop": {"article": 6, "pronoun": 5, "end": 2},
    "number": {"noun": 3, "adjective": 1},
}
"""How often one kind of word follows another, in proportion; a kind that is not named does not."""
FACTORS = (1, 2, 6, 18)
"""How well two words go together; each is drawn with the same probability."""
_MIDDLE = 6


@cache
def vocabulary() -> Vocabulary:
    """Return the words: `<eos>`, `<unk>`, "AAA", then the others by kind."""
    return Vocabulary([word for words in KINDS.values() for word in words.split()])


@cache
def source() -> MarkovSource:
    """Return the source: its probabilities, and the entropy rate in nats a word."""
    words, kinds = len(vocabulary()), list(KINDS)
    kind = np.array([kinds.index(name) for name, members in KINDS.items() for _ in members.split()])
    gate = np.array([[FOLLOWS[before].get(after, 0) for after in kinds] for before in kinds])
    closing = np.isin(kind, [kinds.index("end"), kinds.index("stop")])
    near, far = _factors("near", words), _factors("far", words)
    near[:, closing] = far[:, closing] = _MIDDLE  # sentences and lines end as often after all words
    far = np.where(closing[:, None], 1, far[:, None])  # [a, b, w]; nothing is remembered beyond an end
    weights = 1 + 120 * gate[kind][:, kind] // np.bincount(kind)[kind] * near * far
    total = weights.sum(axis=-1)
    weights[..., vocabulary().numbers[UNKNOWN_WORD]] = total // 100
    weights[..., vocabulary().numbers["AAA"]] = total // 1000
    return MarkovSource(weights)


def load(request: Request) -> Text:
    """Return `test` (the default; 20,480 words), `val` (20,480) or `train` (204,800)."""
    request.refuse_folder("grammar")
    split = request.split_of("grammar", list(SPLITS))
    stream = _drawn(split)
    return Text(
        "grammar", split, stream, vocabulary(), articles=_articles(stream), block=BLOCK, entropy=source().entropy()
    )


@cache
def _drawn(split: str) -> NDArray[np.int32]:
    end = vocabulary().end
    return np.array([end, *source().draw(SEED, f"grammar/{split}", SPLITS[split], (end, end))], np.int32)


def _articles(stream: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the article of each word: one ends at the first end of a line after `ARTICLE` words."""
    articles, number, first = np.empty(len(stream), np.int32), 0, 0
    for place in map(int, np.flatnonzero(stream == vocabulary().end)):
        if place + 1 - first >= ARTICLE:
            articles[first : place + 1] = number
            number, first = number + 1, place + 1
    articles[first:] = number
    return articles


def _factors(name: str, words: int) -> NDArray[np.int64]:
    """Draw how well each word goes with an earlier one, at [earlier, word]."""
    bits = generator(sample_key(SEED, "grammar/weights", name)).bit_generator.random_raw(words * words)
    factors: NDArray[np.int64] = np.array(FACTORS)[(bits >> np.uint64(62)).astype(int)].reshape(words, words)
    return factors
