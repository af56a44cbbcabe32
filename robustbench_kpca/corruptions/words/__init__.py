"""Corruptions of a running text, one file each: in every line some words are replaced; no word is added or removed.

Every line has its own random stream, a function of seed, corruption and number of the line. It does not depend on the
severity: what is replaced at a lower rate is replaced at a higher one, too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca._core.registry import Family
from robustbench_kpca.protocols.words import SWAPPED_WORD, UNKNOWN_WORD

WORD_CORRUPTIONS = Family("corruption of words", __name__, "CORRUPTION", needs=("parameters", "replaced"))
PROFILE = "words"
Draw = Callable[[int], NDArray[np.uint64]]
"""Returns a given number of random numbers of 64 bits."""


@runtime_checkable
class WordCorruption(Protocol):
    """A corruption of the lines of a text."""

    parameters: ClassVar[dict[str, tuple[Any, ...]]]
    """`words` -> the parameters of severities 1 to 5."""

    def replaced(self, line: Sequence[str], parameter: Any, draw: Draw) -> dict[int, str]:
        """Return the new words of a line by their place.

        Args:
            line: its words, without the end of the line.
            parameter: parameter of the severity.
            draw: the random stream of the line.
        """
        ...


def swapped_words(
    stream: NDArray[np.int32], words: Sequence[str], end: int, name: str, parameter: Any, seed: int
) -> NDArray[np.int32]:
    """Return the corrupted stream: int32, as long as the stream, with every end of a line where it was.

    Args:
        stream: numbers of words, shape (words,).
        words: the vocabulary. A new word that it does not have becomes `<unk>`.
        end: number of the end of a line.
        name: name of the corruption.
        parameter: parameter of the severity.
        seed: seed of the random streams of all lines.

    Raises:
        BadInputError: the vocabulary has neither the new word nor `<unk>`.
    """
    corruption: WordCorruption = WORD_CORRUPTIONS.get(name)
    numbers = {word: number for number, word in enumerate(words)}
    corrupted = stream.astype(np.int32)
    starts = np.concatenate([[0], np.flatnonzero(stream == end) + 1])
    stops = np.append(starts[1:] - 1, len(stream))
    for line, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        if start < stop:
            key = sample_key(seed, name, str(line))
            texts = [words[number] for number in stream[start:stop].tolist()]
            for place, word in corruption.replaced(texts, parameter, generator(key).bit_generator.random_raw).items():
                corrupted[start + place] = _number(word, numbers)
    return corrupted


def _number(word: str, numbers: Mapping[str, int]) -> int:
    number = numbers.get(word, numbers.get(UNKNOWN_WORD))
    if number is None:
        raise BadInputError(
            f"a word is to be replaced by '{word}', but the vocabulary has neither it nor {UNKNOWN_WORD}",
            expected=f"a vocabulary with {SWAPPED_WORD} or {UNKNOWN_WORD}",
        )
    return number
