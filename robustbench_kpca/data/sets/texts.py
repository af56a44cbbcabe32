"""Texts of your own with one label each, such as SST-2, SST-5 or IMDB, as tokens: train, val and test in tables.

Give the folder of `train`, `val` (or `dev`) and `test`, each `.tsv` or `.csv` (`io.text_table`): `texts:SST-2`. Words
are runs of letters, digits and apostrophes, in lower case, and single other signs. The vocabulary has the most frequent
words of `train`, in alphabetical order where equally frequent; other words are `<unk>`. The first `LENGTH`
words of a text are kept; shorter texts end with padding.
"""

import re
from collections import Counter

import torch

from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.io.place import plain_name, stored_folder
from robustbench_kpca.data.io.text_table import LABEL, SPLITS, TEXT, find_table, labelled, read_rows
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples
from robustbench_kpca.data.vocabulary import digest_of
from robustbench_kpca.types import UNKNOWN

LENGTH, VOCABULARY = 128, 20_000
_WORD = re.compile(r"[\w']+|[^\w\s]")


def load(request: Request) -> ArraySamples:
    """Return `test` (the default), `val` or `train`."""
    split = request.split_of("texts", list(SPLITS))
    root = stored_folder("texts", request.folder)
    path, train = find_table(root, split), find_table(root, "train")
    rows, classes = labelled(path, train, TEXT, LABEL)
    numbers = vocabulary([text for text, _ in (rows if path == train else read_rows(train, TEXT, LABEL))])
    tokens = torch.zeros(len(rows), 1, 1, LENGTH)
    for row, (text, _) in zip(tokens, rows, strict=True):
        coded = [numbers.get(word, UNKNOWN) for word in words_of(text)[:LENGTH]]
        row[0, 0, : len(coded)] = torch.tensor(coded)
    samples = ArraySamples(
        tokens,
        [classes.index(label) for _, label in rows],
        name=f"texts-{plain_name(root)}",
        split=split,
        classes=len(classes),
        class_names=classes,
        form=TOKENS,
        ids=[f"{split}/{index:06d}" for index in range(len(rows))],
    )
    samples.vocabulary_sha256 = digest_of(numbers)
    return samples


def words_of(text: str) -> list[str]:
    """Divide a text into words, in lower case."""
    return _WORD.findall(text.lower())


def vocabulary(texts: list[str]) -> dict[str, int]:
    """Return the number of each word: 2 for the most frequent one; 0 is padding and 1 `<unk>`."""
    counts = Counter(word for text in texts for word in words_of(text))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ordered[: VOCABULARY - 2], 2)}
