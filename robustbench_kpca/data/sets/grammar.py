"""Generated: text of 50 words from a Markov source with a memory of two, whose best possible perplexity is known.

After the words a and b, the next word w has a weight that is a product: how often the kind of w follows the kind of b,
how well w goes with b, and how well it goes with a; the last two are drawn at random. So a model has to look two
words back, and further back there is nothing to see. `<unk>` takes about 1 % of every distribution and "AAA" 0.1 %, and
no word has probability 0. What comes after a full stop or after `<eos>` does not depend on anything before.

    entropy(2) is the least mean -log p of any model; entropy(1) that of a model that sees one word only.

A line is a paragraph of several sentences and ends in `<eos>`. An article is a number of whole lines, of 300 words or
a little more. The stream of each part begins with `<eos>`.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.data.markov import MarkovSource
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.text import Text
from robustbench_kpca.data.vocabulary import END, UNKNOWN_WORD, Vocabulary

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


def log_probabilities() -> NDArray[np.float64]:
    """Return the true log p(w | a, b) at [a, b, w], where a is before b; shape (50, 50, 50)."""
    logs: NDArray[np.float64] = np.log(source().probabilities)
    return logs


def load(request: Request) -> Text:
    """Return `test` (the default; 20,480 words), `val` (20,480) or `train` (204,800).

    Raises:
        BadInputError: another split, or a folder is given.

    """
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
