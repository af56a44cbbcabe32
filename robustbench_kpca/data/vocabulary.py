"""A vocabulary: the words of a language model in their order, the end of a line first."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.protocols.words import SWAPPED_WORD
from robustbench_kpca.protocols.words import UNKNOWN_WORD as UNKNOWN_WORD
from robustbench_kpca.types import END_OF_LINE

END = "<eos>"


def digest_of(words: Iterable[str]) -> str:
    """Return a digest of words in the order of their numbers."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


class Vocabulary:
    """Words by number: the number of a word is its place in `words`.

    Raises:
        BadInputError: a word occurs twice, or the first word is not the end of a line.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        if len(self.numbers) != len(self.words) or self.words[END_OF_LINE : END_OF_LINE + 1] != (END,):
            raise BadInputError(
                f"a vocabulary of {len(self.words)} words, {len(self.numbers)} of them different, that begins with "
                f"'{''.join(self.words[:1])}'",
                expected=f"different words, the first of them {END}",
            )

    @classmethod
    def of(cls, lines: Iterable[str], least: int = 1) -> "Vocabulary":
        """Return the end of a line, then all words by frequency; equally frequent ones in the order of appearance.

        Args:
            lines: lines of the training text.
            least: words that occur less often are left out, but for those that protocols give a meaning.
        """
        counts = Counter(word for line in lines for word in line.split())
        words = (word for word, n in counts.most_common() if n >= least or word in (UNKNOWN_WORD, SWAPPED_WORD))
        return cls([END, *(word for word in words if word != END)])

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    @property
    def end(self) -> int:
        """The number of the end of a line."""
        return END_OF_LINE

    def __len__(self) -> int:
        return len(self.words)
