"""What `bytes` and `retrieval` share: rows of one text or two, byte by byte, from tables; or generated, on topics.

A token is a byte of UTF-8 plus 2: 0 is padding, and 1 an unknown word. Every text of a row has `length` places, one
behind the other. In a generated text half of the words are of its topic, the others of all; words are random letters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.io.place import plain_name, stored_folder
from robustbench_kpca.data.io.text_table import LABEL, SPLITS, find_table, labelled
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples
from robustbench_kpca.data.sets._sized import name_of, require_within, sized

FIRST = 2
"""Token of byte 0."""
WORDS = 24
"""Number of words of each topic, and of words that occur in all texts."""
Draw = Callable[[np.random.Generator, int, int], tuple[str, ...]]
"""Draws a row: (random numbers, label, most letters of a text)."""


@dataclass(frozen=True)
class Size:
    """Limits of the texts; the numbers are those of generated rows.

    Attributes:
        length: tokens of a text, with its padding.
    """

    length: int = 4_096
    test: int = 1_000
    val: int = 500
    train: int = 4_000
    seed: int = 0

    def __post_init__(self) -> None:
        require_within(self, "texts by bytes", {"length": 8, "seed": 0}, {"length": 2**16})


def load_rows(request: Request, name: str, columns: tuple[tuple[str, ...], ...], draw: Draw) -> ArraySamples:
    """Return a part of the set `name`: from the tables of a folder, whose texts are in `columns`, or drawn."""
    split, (size, folder) = request.split_of(name, list(SPLITS)), sized(Size, name, request.folder)
    if folder and size != Size(size.length):
        raise BadInputError(f"{name}:{request.folder}", expected="no size but the length, for tables of a folder")
    if folder:
        root = stored_folder(name, folder)
        rows, classes = labelled(find_table(root, split), find_table(root, "train"), *columns, LABEL)
        title = f"{name}-{plain_name(root)}-{size.length}"
    else:
        rows, classes, title = [], ["0", "1"], name_of(name, size)
        for index in range(getattr(size, split)):
            rng = generator(sample_key(size.seed, f"{name}/{split}", str(index)))
            rows.append((*draw(rng, index % 2, size.length), str(index % 2)))
    return ArraySamples(
        as_tokens([row[:-1] for row in rows], size.length),
        [classes.index(row[-1]) for row in rows],
        name=title,
        split=split,
        classes=len(classes),
        class_names=classes,
        form=TOKENS,
        ids=[f"{split}/{index:06d}" for index in range(len(rows))],
    )


def as_tokens(rows: list[tuple[str, ...]], length: int) -> Tensor:
    """Return (rows, 1, 1, texts of a row * length)."""
    tokens = torch.zeros(len(rows), 1, 1, len(rows[0]) * length if rows else length)
    for places, row in zip(tokens, rows, strict=True):
        for number, text in enumerate(row):
            cut = bytearray(text.encode()[:length])
            if cut:
                first = number * length
                places[0, 0, first : first + len(cut)] = torch.frombuffer(cut, dtype=torch.uint8).float() + FIRST
    return tokens


def written(rng: np.random.Generator, topic: int, most: int) -> str:
    """Return a text on a topic, of at least half as many letters as it may have."""
    of_topic, common, count, text = _words(topic), _words(-1), int(rng.integers(most // 2, most + 1)), ""
    while len(text) < count:
        text += (of_topic if rng.random() < 0.5 else common)[int(rng.integers(WORDS))] + " "
    return text[:count]


@cache
def _words(topic: int) -> list[str]:
    rng = generator(sample_key(0, "topics", str(topic)))
    return ["".join(chr(97 + k) for k in rng.integers(0, 26, int(rng.integers(3, 7)))) for _ in range(WORDS)]
