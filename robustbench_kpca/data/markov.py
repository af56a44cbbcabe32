"""A source of words with a memory of two: every word is drawn from a table, given the two words before it.

Its entropy rate is known exactly, so the best possible perplexity of a language model is known, too (Shannon 1948, "A
Mathematical Theory of Communication", section 7; Cover & Thomas 2006, "Elements of Information Theory", section 4.2).
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.randomness import generator, sample_key

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
