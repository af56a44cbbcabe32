"""Word swap: some words, chosen at random, are replaced by one that the vocabulary does not have.

Teo & Nguyen (2024), arXiv:2406.13762, section 4.3, replace words of WikiText by "AAA"; the paper does not state the
rate. The severities here are this project's. A label does not change with its words: under ListOps, where every word
counts, no classifier can be right about all swapped lists.
"""

from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.tokens import PROFILE, Words
from robustbench_kpca.types import PAD, UNKNOWN


class WordSwap:
    """Words are chosen without repetition; `parameter` is their share, rounded down, and at least one is replaced."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = {PROFILE: (0.025, 0.05, 0.1, 0.2, 0.4)}

    def fast(self, words: Words, parameter: float, rng: np.random.Generator) -> Words:
        """Replace the chosen words by `<unk>`."""
        swapped, places = words.copy(), np.flatnonzero(words != PAD)
        if len(places):
            swapped[rng.choice(places, max(1, int(parameter * len(places))), replace=False)] = UNKNOWN
        return swapped


CORRUPTION = WordSwap()
