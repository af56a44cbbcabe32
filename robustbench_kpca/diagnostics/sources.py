"""Data for a diagnosis: blocks of images, or of texts with a padding mask."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from robustbench_kpca.data.samples import Samples, to_tensor
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import sha256
from robustbench_kpca.records.record import DataInfo


@dataclass(frozen=True)
class Block:
    """Inputs for one pass; `kept` is True for tokens and False for padding, or None without padding."""

    inputs: Any
    ids: tuple[str, ...]
    kept: Tensor | None = None


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
        return DataInfo(name=s.name, split=s.split, n=len(s), classes=s.classes, digest=s.digest(), task=s.task)

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield float images in [0, 1]."""
        for numbers in _batched(len(self.samples), size):
            images = torch.stack([to_tensor(self.samples.image(number)) for number in numbers])
            yield Block(images, tuple(self.samples.ids[number] for number in numbers))


@dataclass(frozen=True)
class TextSource:
    """Token ids of texts; within a block, shorter texts are padded and the padding is masked."""

    name: str
    sequences: tuple[tuple[int, ...], ...]
    pad: int

    def info(self) -> DataInfo:
        """Return the identity of the token ids."""
        digest = sha256(repr(self.sequences).encode())
        return DataInfo(name=self.name, split="all", n=len(self.sequences), classes=0, digest=digest, task="text")

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield `input_ids` and `attention_mask`."""
        for numbers in _batched(len(self.sequences), size):
            rows = [torch.tensor(self.sequences[number]) for number in numbers]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad)
            lengths = torch.tensor([len(row) for row in rows])
            kept = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
            yield Block({"input_ids": ids, "attention_mask": kept.long()}, tuple(str(n) for n in numbers), kept)


def _batched(count: int, size: int) -> Iterator[range]:
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


LEAST_CHARACTERS = 30
MOST_TOKENS = 128


def load_text_model(name: str, file: Path, limit: int) -> tuple[Any, TextSource]:
    """Load an encoder and its tokeniser with `transformers`, and the first `limit` texts of a file, one per line.

    As in the study, only lines of more than 30 characters are used, truncated to 128 tokens. Only texts of equal length
    can serve as each other's null model.

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
    try:
        model = library.AutoModel.from_pretrained(name).eval()
        tokenizer = library.AutoTokenizer.from_pretrained(name)
    except Exception as error:  # noqa: BLE001 (the hub fails in many ways)
        raise BadInputError(
            f"transformers model '{name}' could not be loaded ({[*str(error).splitlines(), ''][0][:100]})",
            fix="check the name and the network, or give a folder",
        ) from None
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"cannot read texts {file} ({error})", expected="a text file, one text per line") from None
    texts = [line for line in lines if len(line) > LEAST_CHARACTERS][:limit]
    if not texts:
        raise BadInputError(f"{file} has no line of more than {LEAST_CHARACTERS} characters")
    made = tokenizer(texts, truncation=True, max_length=MOST_TOKENS)["input_ids"]
    return model, TextSource(file.stem, tuple(tuple(row) for row in made), tokenizer.pad_token_id or 0)
