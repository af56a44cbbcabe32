"""Generated: ListOps, nested lists such as [MAX 2 9 [MIN 4 7 ] 0 ], as tokens; the label is the value, 0 to 9.

The grammar is that of Nangia & Bowman (2018), "ListOps: A Diagnostic Dataset for Latent Tree Learning",
arXiv:1804.06028, with the operators and limits of the Long Range Arena (Tay et al. 2020, arXiv:2011.04006):

    tree  ->  digit                                with probability 3/4, and always at the greatest depth
    tree  ->  operator tree tree ... tree ]        with probability 1/4; 2 to `arguments` trees, all numbers as likely

All digits and all operators are as likely: the minimum, the maximum, the median, rounded down, and the sum modulo 10.

Depth and lengths are smaller than the Arena's, so that a model learns on a CPU.
`listops:depth=10,arguments=10,least=500,length=2000,train=96000` is the Arena's size. All lists are different and come
from one random stream, first `test`, then `val`, then `train`: the parts do not overlap, and a larger training part
leaves the others as they are. Lists end with padding.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache

import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples
from robustbench_kpca.data.sets._sized import name_of, require_within, sized
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
        depth: the most lists inside each other, plus 1 for digits.
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


PARTS = ("test", "val", "train")
"""Parts, in the order in which their lists are drawn."""
LARGEST = {"depth": 100, "arguments": 1_000}
MOST_TOKENS = 2**29
"""The most tokens of all lists together, padding included: 2 GiB."""
MOST_REJECTED = 100_000
"""Trees in a row without a new list of the wanted length after which there are taken to be no more."""


@dataclass(frozen=True)
class Size:
    """Kind and number of the lists that are drawn.

    Attributes:
        depth: the most lists inside each other, plus 1; the Arena has 10.
        arguments: the most arguments of an operator; the Arena has 10.
        least: a list has more tokens than this.
        length: a list has fewer tokens than this, and is padded to it.
        test: the number of lists in this part; so `val` and `train`.
    """

    depth: int = 4
    arguments: int = 5
    least: int = 4
    length: int = 32
    test: int = 1_000
    val: int = 500
    train: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        smallest = {"depth": 2, "arguments": 2, "least": 0, "length": self.least + 5, "seed": 0}
        require_within(self, "listops", smallest, LARGEST)
        if self.length * self.lists > MOST_TOKENS:
            raise BadInputError(f"lists of {self.length} tokens", expected=f"at most {MOST_TOKENS:,} tokens in all")

    @property
    def lists(self) -> int:
        """The number of lists in all parts."""
        return self.test + self.val + self.train


def load(request: Request) -> ArraySamples:
    """Return `test` (the default), `val` or `train`.

    `request.folder` holds the sizes that differ from the default, such as `depth=6,length=128`.
    """
    split, (size, folder) = request.split_of("listops", PARTS), sized(Size, "listops", request.folder)
    if folder:
        raise BadInputError(f"listops:{request.folder}", expected="NAME=NUMBER,... such as depth=6,length=128")
    tokens, labels = _parts(size)[split]
    return ArraySamples(
        tokens,
        labels,
        name=name_of("listops", size),
        split=split,
        classes=10,
        form=TOKENS,
        ids=[f"listops/{split}/{index:05d}" for index in range(len(labels))],
    )


@cache
def _parts(size: Size) -> dict[str, tuple[torch.Tensor, list[int]]]:
    lists = _different_lists(size)
    parts = {}
    for part in PARTS:
        chosen = [next(lists) for _ in range(asdict(size)[part])]
        tokens = torch.zeros(len(chosen), 1, 1, size.length)
        for row, (words, _) in zip(tokens, chosen, strict=True):
            row[0, 0, : len(words)] = torch.tensor([NUMBERS[word] for word in words])
        parts[part] = tokens, [value for _, value in chosen]
    return parts


def _different_lists(size: Size) -> Iterator[tuple[list[str], int]]:
    """Yield lists of the grammar whose length is strictly inside the limits, as the Arena does, each once."""
    rng, drawn, rejected = random.Random(size.seed), set(), 0
    while rejected < MOST_REJECTED:
        words, value = grow(rng, size.depth, size.arguments)
        text = " ".join(words)
        if size.least < len(words) < size.length and text not in drawn:
            drawn.add(text)
            rejected = 0
            yield words, value
        else:
            rejected += 1
    raise BadInputError(f"fewer than {size.lists} lists of {name_of('listops', size)}", fix="ask for fewer")
