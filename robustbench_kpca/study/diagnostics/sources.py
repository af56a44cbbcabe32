"""Data for a diagnosis: blocks of images, or of texts with a padding mask; and text encoders of `transformers`."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import sha256
from robustbench_kpca.data.samples import Samples, to_tensor
from robustbench_kpca.data.text import Text
from robustbench_kpca.records.spec import DataInfo

MOST_TOKENS = 128
"""Texts are truncated to this number of tokens, as in the study."""


@dataclass(frozen=True)
class Block:
    """Inputs for one pass.

    Attributes:
        inputs: images, or named tensors.
        ids: one per row.
        kept: True for the tokens that are measured, False for padding; None if all are.
        attended: True for the tokens that the model attends to; None if all are.
    """

    inputs: Any
    ids: tuple[str, ...]
    kept: Tensor | None = None
    attended: Tensor | None = None


@runtime_checkable
class Source(Protocol):
    """A source of blocks, which can be read more than once."""

    def info(self) -> DataInfo:
        """Return the identity of the data."""
        ...

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield blocks of at most `size` images or texts."""
        ...


@dataclass(frozen=True)
class ImageSource:
    """Images, loaded block by block."""

    samples: Samples

    def info(self) -> DataInfo:
        """Return the identity of the images."""
        s = self.samples
        return DataInfo(
            name=s.name,
            split=s.split,
            n=len(s),
            classes=s.classes,
            digest=s.digest(),
            task=s.task,
            resized=s.resized or None,
        )

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield float images in [0, 1]."""
        for numbers in _batched(len(self.samples), size):
            images = torch.stack([to_tensor(self.samples.image(number)) for number in numbers])
            yield Block(images, tuple(self.samples.ids[number] for number in numbers))


@dataclass(frozen=True)
class TextSource:
    """Token ids of texts; within a block, shorter texts are padded and the padding is masked.

    With `padded_to` every text is padded to this length, and padding is measured like tokens, though still masked in
    the model.
    """

    name: str
    sequences: tuple[tuple[int, ...], ...]
    pad: int
    padded_to: int | None = None

    def info(self) -> DataInfo:
        """Return the identity of the token ids."""
        digest = sha256(repr(self.sequences).encode())
        return DataInfo(name=self.name, split="all", n=len(self.sequences), classes=0, digest=digest, task="text")

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield `input_ids` and `attention_mask`."""
        for numbers in _batched(len(self.sequences), size):
            rows = [torch.tensor(self.sequences[number]) for number in numbers]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad)
            if self.padded_to is not None:
                ids = torch.nn.functional.pad(ids, (0, self.padded_to - ids.shape[1]), value=self.pad)
            lengths = torch.tensor([len(row) for row in rows])
            real = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
            inputs = {"input_ids": ids, "attention_mask": real.long()}
            kept = real if self.padded_to is None else None
            yield Block(inputs, tuple(str(n) for n in numbers), kept, real)


@dataclass(frozen=True)
class WindowSource:
    """Windows of a text of words, evenly spread over it, each as long as a language model reads at once.

    Raises:
        BadInputError: the text is shorter than a window.
    """

    text: Text
    window: int
    count: int

    def __post_init__(self) -> None:
        if len(self.text.stream) < self.window:
            met = f"a text of {len(self.text.stream)} words"
            raise BadInputError(met, expected=f"at least {self.window}, a window")

    def info(self) -> DataInfo:
        """Return the identity of the text."""
        t = self.text
        return DataInfo(
            name=t.name, split=t.split, n=len(self._starts()), classes=t.classes, digest=t.digest(), task=t.task
        )

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield words by number, (windows, 1, 1, window)."""
        starts = self._starts()
        for numbers in _batched(len(starts), size):
            cut = [self.text.stream[starts[number] : starts[number] + self.window] for number in numbers]
            words = torch.from_numpy(np.stack(cut).astype(np.float32))
            yield Block(words[:, None, None], tuple(str(starts[number]) for number in numbers))

    def _starts(self) -> list[int]:
        last = len(self.text.stream) - self.window
        count = min(self.count, last + 1)
        return [number * (last + 1) // count for number in range(count)]


def _batched(count: int, size: int) -> Iterator[range]:
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


LEAST_CHARACTERS = 30


def load_text_model(name: str, file: Path, limit: int) -> tuple[Any, TextSource]:
    """Load an encoder and its tokeniser with `transformers`, and the first `limit` texts of a file, one per line.

    As in the study, only lines of more than 30 characters are used, truncated to 128 tokens. Only texts of equal length
    can serve as each other's null model.

    Args:
        name: a name of the Hugging Face hub, or a folder.

    Raises:
        BadInputError: `transformers` is missing, the model cannot be loaded, or the file has no such lines.
    """
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError:
        raise BadInputError(
            f"model 'transformers:{name}' needs the package transformers, which is not installed",
            fix="pip install transformers",
        ) from None
    texts = _lines(file)[:limit]
    try:
        model = library.AutoModel.from_pretrained(name).eval()
        tokenizer = library.AutoTokenizer.from_pretrained(name)
    except Exception as error:  # noqa: BLE001 (the hub fails in many ways)
        raise BadInputError(
            f"transformers model '{name}' could not be loaded ({reason_of(error)})",
            fix="check the name and the network, or give a folder",
        ) from None
    made = tokenizer(texts, truncation=True, max_length=MOST_TOKENS)["input_ids"]
    return model, TextSource(file.stem, tuple(tuple(row) for row in made), tokenizer.pad_token_id or 0)


def _lines(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"cannot read texts {file} ({reason_of(error)})", expected="a text file, one text per line"
        ) from None
    texts = [line for line in lines if len(line) > LEAST_CHARACTERS]
    if not texts:
        raise BadInputError(f"{file} has no line of more than {LEAST_CHARACTERS} characters")
    return texts
