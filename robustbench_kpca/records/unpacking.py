"""Unpack a stored table of outcomes, no further than the rows that its record declares can need."""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator

from robustbench_kpca.errors import BadInputError, reason_of
from robustbench_kpca.records.table import Table

NUMBER, TEXT = 32, 1024
"""Bytes that a number and a text of a row may take, on average over the rows: generous (an id may be a path)."""
SPARE = 2**16
MOST = 2**30
"""Bytes of any table: 50,000 images under 76 corruptions take about 0.4 of it."""
_CHUNK = 2**20
_XZ, _XZ_MEMORY = b"\xfd7zXZ\x00", 2**26  # how an xz file begins; bytes that unpacking one may take (ours need 2**23)
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def most_bytes(table: Table, rows: int) -> int:
    """Return the most bytes of text that so many rows of a table may take, the header included."""
    row = sum(TEXT if kind == "str" else NUMBER for kind in table.columns.values())
    return min(MOST, SPARE + (max(rows, 0) + 1) * row)


def unpack(data: bytes, most: int, where: str) -> bytes:
    """Return the text of a stored file, xz or gzip; stop as soon as it is longer than `most` bytes.

    Raises:
        BadInputError: longer, truncated, or no such file.

    """
    text = bytearray()
    try:
        for chunk in _chunks(data, min(_CHUNK, most + 1)):
            text += chunk
            if len(text) > most:
                raise BadInputError(
                    f"{where} unpacks to more than {most:,} bytes", expected="a table of the rows of its record",
                    fix="do not use it; ask who made it, or evaluate again",
                )  # fmt: skip
    except _DAMAGE as error:
        raise damaged(where, error) from None
    return bytes(text)


def _chunks(data: bytes, size: int) -> Iterator[bytes]:
    """Yield the text of a file in portions of at most `size` bytes."""
    if not data.startswith(_XZ):
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            yield from iter(lambda: file.read(size), b"")
        return
    packed = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY)
    yield packed.decompress(data, size)
    while not packed.eof:
        if packed.needs_input:
            raise EOFError
        yield packed.decompress(b"", size)
    if packed.unused_data:
        raise EOFError


def damaged(where: str, error: BaseException) -> BadInputError:
    """Return the error for a file that is no table, or a part of one."""
    return BadInputError(f"{where} is no whole outcomes table ({reason_of(error)})", fix="evaluate again")
