"""Texts of your own with one label each, such as SST-2, SST-5 or IMDB, as tokens: train, val and test in tables.

Give the folder of `train`, `val` (or `dev`) and `test`, each `.tsv` or `.csv` (`io.text_table`): `texts:SST-2`. Words
are runs of letters, digits and apostrophes, in lower case, and single other signs. The vocabulary has the most frequent
words of `train`, in alphabetical order where equally frequent; other words are `<unk>`. Of a text the first `LENGTH`
words are kept; shorter ones end with padding.
"""

import re
from collections import Counter
from pathlib import Path

import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.io.natural import natural
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.io.text_table import read_texts
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples
from robustbench_kpca.data.vocabulary import digest_of
from robustbench_kpca.types import UNKNOWN

SPLITS = {"test": ("test",), "val": ("val", "dev"), "train": ("train",)}
LENGTH, VOCABULARY = 128, 20_000
_WORD = re.compile(r"[\w']+|[^\w\s]")


def load(request: Request) -> ArraySamples:
    """Return `test` (the default), `val` or `train`.

    Raises:
        BadInputError: another split, a table that is missing or damaged, or a class that `train` does not have.

    """
    split = request.split_of("texts", list(SPLITS))
    root = stored_folder("texts", request.folder)
    train = read_texts(_table(root, "train"))
    rows = train if split == "train" else read_texts(_table(root, split))
    classes, numbers = sorted({label for _, label in train}, key=natural), vocabulary([text for text, _ in train])
    odd = next((label for _, label in rows if label not in classes), None)
    if odd is not None:
        raise BadInputError(
            f"class '{odd[:40]}' in {split}", expected=f"one of those in train: {', '.join(classes)[:80]}"
        )
    tokens = torch.zeros(len(rows), 1, 1, LENGTH)
    for row, (text, _) in zip(tokens, rows, strict=True):
        found = [numbers.get(word, UNKNOWN) for word in words_of(text)[:LENGTH]]
        row[0, 0, : len(found)] = torch.tensor(found)
    samples = ArraySamples(
        tokens, [classes.index(label) for _, label in rows], name=f"texts-{re.sub(r'[^A-Za-z0-9.-]+', '-', root.name)}",
        split=split, classes=len(classes), class_names=classes, form=TOKENS,
        ids=[f"{split}/{index:06d}" for index in range(len(rows))],
    )  # fmt: skip
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


def _table(root: Path, split: str) -> Path:
    names = [f"{stem}{suffix}" for stem in SPLITS[split] for suffix in (".tsv", ".csv")]
    found = [root / name for name in names if (root / name).is_file()]
    if len(found) != 1:
        raise BadInputError(
            f"{root} has {len(found)} tables of {split}", expected=f"one of {', '.join(names)}",
            fix="add it, or choose another --split",
        )  # fmt: skip
    return found[0]
