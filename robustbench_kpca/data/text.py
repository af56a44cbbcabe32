"""Data sets for language: one stream of words, divided into blocks; every word is predicted from those before it."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.base import Dataset, Part, array_fingerprint
from robustbench_kpca.data.forms import WORDS
from robustbench_kpca.data.vocabulary import Vocabulary, digest_of

Stream = NDArray[np.int32]
Self = TypeVar("Self", bound="Text")
BLOCK = 64


class Text(Dataset):
    """A stream of words by number, divided into blocks of consecutive positions.

    A sample is a block: its positions are scored, each from the words before it, also those of earlier blocks. The
    first word of the stream has nothing before it and is in no block.

    Args:
        stream: numbers of words, shape (words,).
        articles: the article of each word, shape (words,), ascending; intervals resample articles. Default: one
            article a block.
        block: number of positions of a block.
        entropy: the entropy rate of the source in nats a word, if it is known: no model can do better on average.

    Raises:
        BadInputError: fewer than two words, a number outside the vocabulary, or a block below 1.
    """

    task = "language"
    form = WORDS

    def __init__(
        self,
        name: str,
        split: str,
        stream: NDArray[Any],
        vocabulary: Vocabulary,
        *,
        articles: NDArray[Any] | None = None,
        block: int = BLOCK,
        entropy: float | None = None,
    ) -> None:
        if stream.ndim != 1 or len(stream) < 2 or block < 1:
            raise BadInputError(
                f"data '{name}' ({split}) is a text of shape {stream.shape} in blocks of {block}",
                expected="at least two words, and blocks of at least one",
            )
        if int(stream.min()) < 0 or int(stream.max()) >= len(vocabulary):
            raise BadInputError(
                f"data '{name}' ({split}) has words numbered {stream.min()} to {stream.max()}",
                expected=f"0 to {len(vocabulary) - 1}, the numbers of its vocabulary",
            )
        blocks = -(-(len(stream) - 1) // block)
        super().__init__(name, split, [f"{index:07d}" for index in range(blocks)], len(vocabulary))
        self.stream, self.vocabulary = stream.astype(np.int32, copy=False), vocabulary
        self.block, self.entropy, self.vocabulary_sha256 = block, entropy, digest_of(vocabulary.words)
        articles = np.maximum(np.arange(len(stream)) - 1, 0) // block if articles is None else articles
        self.articles = articles.astype(np.int32, copy=False)

    def span(self, index: int) -> tuple[int, int]:
        """Return the first position of a block and the one after its last."""
        start = 1 + index * self.block
        return start, min(start + self.block, len(self.stream))

    def image(self, index: int) -> Tensor:
        """Return the words of a block by number, float32 (1, 1, words)."""
        start, stop = self.span(index)
        return torch.from_numpy(self.stream[start:stop].astype(np.float32))[None, None]

    def fingerprint(self, index: int) -> str:
        """Hash of the words of a block and of the one before it."""
        start, stop = self.span(index)
        return array_fingerprint(self.stream[max(start - self.block, 0) : stop])

    def take(self: Self, indices: Sequence[int]) -> Self:
        """Return the blocks at `indices`, in that order; their words are still predicted from those before them."""
        return cast("Self", _TextPart(self, indices))

    def digest_rows(self, prints: Sequence[str]) -> list[str]:
        """Return the size of the vocabulary and of a block, then id and fingerprint of every block."""
        return [
            f"{self.classes} {self.block}",
            *sorted(f"{name}\t{content}" for name, content in zip(self.ids, prints, strict=True)),
        ]


class _TextPart(Part, Text):
    whole: Text

    def __init__(self, whole: Text, indices: Sequence[int]) -> None:
        super().__init__(whole, indices)
        self.stream, self.vocabulary, self.articles = whole.stream, whole.vocabulary, whole.articles
        self.block, self.entropy = whole.block, whole.entropy

    def span(self, index: int) -> tuple[int, int]:
        return self.whole.span(self.indices[index])

    def digest_rows(self, prints: Sequence[str]) -> list[str]:
        """Return also the whole text: words before a block are read, though they are not scored."""
        rows, whole = super().digest_rows(prints), len(self) == -(-(len(self.stream) - 1) // self.block)
        return rows if whole else [*rows, array_fingerprint(self.stream)]
