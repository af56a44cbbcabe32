"""A file of words as a stream of numbers, with the vocabulary of another file; large files are read once.

The encoding is that of the published language models of WikiText: a line is divided at white space and followed by
`<eos>`, so an empty line is `<eos>` alone; the vocabulary is `Vocabulary.of` the training file.

For training files of `KEPT_FROM` bytes or more, vocabulary and streams are kept in the folder RBK_CACHE, or else
`~/.cache/robustbench-kpca`, under the SHA-256 of the contents of the files. Where it cannot be written, nothing is
kept.
"""

import contextlib
import hashlib
import os
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, reason_of
from robustbench_kpca._core.files import require_file, write_atomic
from robustbench_kpca.data.io.reading import map_array
from robustbench_kpca.data.vocabulary import UNKNOWN_WORD, Vocabulary

ENVIRONMENT_VARIABLE = "RBK_CACHE"
KEPT_FROM = 2**25
_MISSING = -1
LONGEST = 2**24
"""Bytes of a line; WikiText's longest has about 20,000."""


class Encoded(NamedTuple):
    """A text by number.

    Attributes:
        stream: int32 (words,), with `<eos>` after every line.
        unknown: number of words of the text that the vocabulary does not have; they are `<unk>` in the stream.
    """

    stream: NDArray[np.int32]
    vocabulary: Vocabulary
    unknown: int


def encoded(path: Path, train: Path, least: int = 1) -> Encoded:
    """Return the text of `path` with the vocabulary of `train`: the words that occur there `least` times or more.

    Raises:
        BadInputError: as `lines_of`; or a word that `train` does not have, and no `<unk>` there either.
    """
    require_file(path)
    require_file(train)
    key = _digest(train) + (f"-{least}" if least > 1 else "")
    keep = cache_folder() / key if train.stat().st_size >= KEPT_FROM else None
    vocabulary = _vocabulary(train, keep, least)
    stream = _numbers(path, vocabulary, keep)
    missing = stream == _MISSING
    if not missing.any():
        return Encoded(stream, vocabulary, 0)
    if UNKNOWN_WORD not in vocabulary.numbers:
        raise BadInputError(
            f"{path} has {missing.sum()} words that the vocabulary of {train.name} does not have",
            expected=f"{UNKNOWN_WORD} in {train}",
        )
    return Encoded(np.where(missing, vocabulary.numbers[UNKNOWN_WORD], stream), vocabulary, int(missing.sum()))


def cache_folder() -> Path:
    """Return the folder in which vocabularies and streams are kept."""
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(folder) if folder else Path.home() / ".cache" / "robustbench-kpca"


def _vocabulary(train: Path, keep: Path | None, least: int) -> Vocabulary:
    stored = keep and keep / "vocabulary.txt"
    if stored and stored.is_file():
        return Vocabulary(stored.read_bytes().decode().split("\n"))
    vocabulary = Vocabulary.of(lines_of(train), least)
    if stored:
        with contextlib.suppress(BenchmarkError):
            write_atomic(stored, "\n".join(vocabulary.words).encode())
    return vocabulary


def _numbers(path: Path, vocabulary: Vocabulary, keep: Path | None) -> NDArray[np.int32]:
    """Return the stream, with `_MISSING` for words that the vocabulary does not have."""
    stored = keep and keep / f"{_digest(path)}.npy"
    if stored and stored.is_file():
        mapped: NDArray[np.int32] = map_array(stored)
        return mapped
    number, end, numbers = vocabulary.numbers.get, vocabulary.end, array("i")
    for line in lines_of(path):
        numbers.extend([number(word, _MISSING) for word in line.split()])
        numbers.append(end)
    stream = np.frombuffer(numbers, np.int32)
    if stored:
        with contextlib.suppress(OSError):
            _write(stored, stream)
    return stream


def _write(path: Path, stream: NDArray[np.int32]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        np.save(part, stream)
        part.replace(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lines_of(path: Path) -> Iterator[str]:
    """Yield every line without its end. A last line without a line feed is a line; an empty rest after it is none.

    Raises:
        BadInputError: the file is empty or cannot be read, a line is too long, not in UTF-8, or has NUL characters.
    """
    require_file(path)
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                yield _text(path, number, line)
    except OSError as error:
        raise BadInputError(f"{path} cannot be read ({reason_of(error)})", fix="check the path") from None
    if not number:
        raise BadInputError(f"{path} is empty", expected="a text", fix="copy the file again")


def _text(path: Path, number: int, line: bytes) -> str:
    if len(line) > LONGEST:
        raise BadInputError(f"{path}, line {number} has more than {LONGEST} bytes", expected="a line for a paragraph")
    if b"\0" in line:
        raise BadInputError(f"{path}, line {number} has a NUL character", expected="a text", fix="copy the file again")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"{path}, line {number} cannot be read ({reason_of(error)})", expected="a text in UTF-8"
        ) from None
