"""The grammar of ListOps: random nested lists of digits under four operators, and their values.

Nangia & Bowman (2018), "ListOps: A Diagnostic Dataset for Latent Tree Learning", arXiv:1804.06028, with the operators
and limits of the Long Range Arena (Tay et al. 2020, arXiv:2011.04006).

    tree  ->  digit                                with probability 3/4, and always at the greatest depth
    tree  ->  operator tree tree ... tree ]        with probability 1/4; 2 to `arguments` trees, all numbers as likely

All digits and all operators are as likely. The operators are the minimum, the maximum, the median, rounded down, and
the sum modulo 10.
"""

import random
import statistics
from collections.abc import Callable, Sequence

from robustbench_kpca.types import PAD, UNKNOWN

OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
END = "]"
WORDS = ("<pad>", "<unk>", *map(str, range(10)), *OPERATORS, END)
"""The vocabulary: the number of a word is its place."""
NUMBERS = {word: number for number, word in enumerate(WORDS)}
NESTED = 0.25
assert (WORDS[PAD], WORDS[UNKNOWN]) == ("<pad>", "<unk>")


def grow(rng: random.Random, depth: int, arguments: int) -> tuple[list[str], int]:
    """Draw a tree; return its words and its value.

    Args:
        rng: only its `random()` is used, whose numbers are the same in every version of Python.
        depth: the greatest number of nested lists, plus 1 for digits.
        arguments: the greatest number of arguments.

    """
    if depth == 1 or rng.random() >= NESTED:
        digit = int(rng.random() * 10)
        return [str(digit)], digit
    operator = list(OPERATORS)[int(rng.random() * len(OPERATORS))]
    words, values = [operator], []
    for _ in range(2 + int(rng.random() * (arguments - 1))):
        inner, value = grow(rng, depth - 1, arguments)
        words += inner
        values.append(value)
    return [*words, END], OPERATORS[operator](values)
