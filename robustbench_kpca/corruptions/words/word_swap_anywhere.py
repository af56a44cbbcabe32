"""Word swap at a plain rate: every word of a line, signs and stop words too, becomes "AAA" with the same probability.

Not the authors' rule (`word_swap_by_line`), which replaces far more words of short lines than of long ones.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.words import PROFILE, Draw
from robustbench_kpca.protocols.words import SWAPPED_WORD


class WordSwapAnywhere:
    """`parameter` is the probability with which a word is replaced, independently of the others."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = {PROFILE: (0.015, 0.025, 0.05, 0.1, 0.2)}

    def replaced(self, line: Sequence[str], parameter: float, draw: Draw) -> dict[int, str]:
        """Return "AAA" at the places whose random number lies in the lowest part of the range."""
        chosen = draw(len(line)) < np.uint64(int(parameter * 2**64))
        return dict.fromkeys(np.flatnonzero(chosen).tolist(), SWAPPED_WORD)


CORRUPTION = WordSwapAnywhere()
