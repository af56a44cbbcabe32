"""WikiText-103: articles of Wikipedia, 103 million words to train on; `wiki.{train,valid,test}.tokens` in a folder.

Merity et al. (2016), "Pointer Sentinel Mixture Models", arXiv:1609.07843; articles of Wikipedia, CC BY-SA 3.0.

The vocabulary is that of the training part. Without `wiki.train.tokens`, a part of it is taken that has another name,
`wiki.train.NAME.tokens`. Then the vocabulary has the words that occur `LEAST` times or more in it: rarer ones can
hardly be learnt from so little text, and each costs a row of the softmax. All others are `<unk>`, where the published
code would stop; the name of the data ends in `-excerpt`, and a remark says how many words these are. The published set
is made by the same rule, with 3 times in the whole of its training part (section 4.3).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import AbsentPartError
from robustbench_kpca.data.io.encoded import encoded
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.text import BLOCK, Text
from robustbench_kpca.data.vocabulary import Vocabulary
from robustbench_kpca.protocols.words import SWAPPED_WORD

NAME = "wikitext103"
SPLITS = {"test": "test", "val": "valid", "train": "train"}
LEAST = 10
"""How often a word of an excerpt occurs in it at least, to be in the vocabulary."""
VOCABULARY = 267_735
"""Words of the published set, with `<eos>`."""
WORDS = {"train": 103_227_021, "val": 217_646, "test": 245_569}
"""Number of words of each published split, with `<eos>`."""


def load(request: Request) -> Text:
    """Return `test` (the default; 245,569 words), `val` (217,646) or `train` (103,227,021), `<eos>` included."""
    split = request.split_of(NAME, list(SPLITS))
    root = stored_folder(NAME, request.folder)
    train = _train(root)
    path = train if split == "train" else _file(root, split)
    part = train.name != "wiki.train.tokens"
    stream, vocabulary, unknown = encoded(path, train, LEAST if part else 1)
    name = NAME if len(vocabulary) == VOCABULARY else f"{NAME}-excerpt"
    text = Text(name, split, stream, vocabulary, articles=articles_of(stream, vocabulary))
    text.expected = -(-(WORDS[split] - 1) // BLOCK)
    source = f"{train.name}, where each occurs {LEAST} times or more" if part else train.name
    text.notes = tuple(_notes(source, vocabulary, unknown))
    return text


def articles_of(stream: NDArray[np.int32], vocabulary: Vocabulary) -> NDArray[np.int32] | None:
    """Return the article of each word, from 0; None if there is no heading of an article.

    Such a heading is a line `= Title =` between empty lines (or at the beginning or end of the file). In those of
    sections there are more signs: `= = Section = =`.
    """
    sign = vocabulary.numbers.get("=")
    ends = np.flatnonzero(stream == vocabulary.end)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    framed = np.append(lengths[1:] == 0, True) & np.append(True, lengths[:-1] == 0)
    lines = np.flatnonzero(framed & (lengths > 2))
    first, last = starts[lines], ends[lines] - 1
    around = (stream[first] == sign) & (stream[last] == sign)
    inside = (stream[first + 1] != sign) & (stream[last - 1] != sign)
    heads = first[around & inside]
    if not len(heads):
        return None
    bounds = [0, *heads[1:], len(stream)]
    return np.repeat(np.arange(len(heads), dtype=np.int32), np.diff(bounds))


def _train(root: Path) -> Path:
    whole = root / "wiki.train.tokens"
    parts = sorted(root.glob("wiki.train.*.tokens"))
    if whole.is_file() or len(parts) != 1:
        return _file(root, "train")
    return parts[0]


def _file(root: Path, split: str) -> Path:
    path = root / f"wiki.{SPLITS[split]}.tokens"
    if path.is_file():
        return path
    other = "the vocabulary is made from it" if split == "train" else "or choose another --split"
    raw = ", and the .raw files have no <unk>" if path.with_suffix(".raw").is_file() else ""
    raise AbsentPartError(f"there is no file {path}{raw}", expected=f"{path.name}: {other}", fix=f"give {NAME}:FOLDER")


def _notes(source: str, vocabulary: Vocabulary, unknown: int) -> list[str]:
    notes = []
    if len(vocabulary) != VOCABULARY:
        notes.append(
            f"the vocabulary has {len(vocabulary)} words, from {source}, and not the {VOCABULARY} of the "
            f"published set; {unknown} words of the text are not in it and became <unk>"
        )
    if SWAPPED_WORD not in vocabulary.numbers:
        notes.append(f"the vocabulary has no '{SWAPPED_WORD}': where words are swapped, <unk> takes its place")
    return notes
