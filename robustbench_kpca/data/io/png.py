"""Tell whether the pixels of a PNG file are all there: Pillow shows missing rows as black if the stream is closed."""

import struct
import zlib

_SIGNATURE = 8
_CHUNK = 2**20
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of interlaced images (Adam7): first column, first row, and the steps between columns and rows."""


def is_whole(data: bytes) -> bool:
    """Whether the compressed stream of a PNG file holds every row that its header promises.

    W3C, "Portable Network Graphics (PNG) Specification", sections 8 and 9: each row of each pass is one byte for its
    filter, and its pixels, rounded up to whole bytes.

    Raises:
        ValueError, struct.error, zlib.error: not a PNG file.

    """
    promised, stream, at = None, zlib.decompressobj(), _SIGNATURE
    unpacked = 0
    while at + 8 <= len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        at += 12 + size
        if name == b"IHDR":
            promised = _bytes_of(*struct.unpack(">IIBBBBB", body))
        elif name == b"IDAT" and promised is not None:
            while body and unpacked < promised:
                unpacked += len(stream.decompress(body, min(promised - unpacked, _CHUNK)))
                body = stream.unconsumed_tail
        elif name == b"IEND":
            break
    if promised is None:
        raise ValueError("no header")
    return unpacked >= promised


def _bytes_of(width: int, height: int, depth: int, colour: int, _: int, __: int, interlaced: int) -> int:
    """Return the length of the uncompressed stream; the arguments are those of the header, in its order."""
    total = 0
    for left, top, across, down in _PASSES if interlaced else ((0, 0, 1, 1),):
        columns, rows = (width - left + across - 1) // across, (height - top + down - 1) // down
        if columns > 0:
            total += max(rows, 0) * (1 + (columns * depth * _CHANNELS[colour] + 7) // 8)
    return total
