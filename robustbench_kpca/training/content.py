"""A digest of the content of files that a training reads, cheap for large folders: sizes, and bytes at some places."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from robustbench_kpca._core.files import sha256

PLACES, BLOCK = 2_000, 65_536
"""Most places of a folder that are read, and bytes at each: all bytes of at most 2,000 files of at most 64 KiB."""


def spread(count: int) -> range:
    """Return at most `PLACES` numbers below `count`, evenly spread; all of them where there are no more."""
    return range(0, count, -(-count // PLACES) or 1)


def content_sha256(files: Sequence[Path]) -> str:
    """Return the digest of the sizes of all files, and of bytes of evenly spread ones; "" if there are no files.

    A file that cannot be read has no bytes: whether that matters, the recipe says.
    """
    if not files:
        return ""
    chosen = spread(len(files))
    digest = hashlib.sha256(repr([_size(file) for file in files]).encode())
    for number in chosen:
        digest.update(sha256(_bytes(files[number], PLACES // len(chosen))).encode())
    return digest.hexdigest()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _bytes(file: Path, blocks: int) -> bytes:
    """Read a file of up to this many blocks whole, and as many evenly spread blocks of a larger file."""
    try:
        with file.open("rb") as opened:
            last = file.stat().st_size - BLOCK
            if last <= (blocks - 1) * BLOCK:
                return opened.read()
            parts = []
            for number in range(blocks):
                opened.seek(number * last // max(blocks - 1, 1))
                parts.append(opened.read(BLOCK))
            return b"".join(parts)
    except OSError:
        return b""
