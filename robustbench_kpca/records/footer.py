"""What a Parquet file says of itself, read without its library: a wrong number there can abort the process.

The footer is a Thrift structure in the compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), whose fields are those of
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift. Fields are known by their numbers.
"""

from collections.abc import Collection, Mapping
from typing import Any

MAGIC = b"PAR1"
LONGEST = 2**22
"""Bytes of a footer: a group of rows takes about a hundred a column."""
_DEEPEST = 8
_FILE, _ELEMENT, _GROUP, _CHUNK = {1, 2, 3, 4, 6, 7}, {1, 3, 4, 5, 6, 10}, {1, 2, 3, 5, 6, 7}, {2, 3}
_COLUMN = {1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 16}
_ENCODINGS = {0, 2, 3, 4, 8}  # plain, through a dictionary, run lengths, packed bits
TYPES = {"str": 6, "int": 2, "float": 4}
"""Byte arrays, whole numbers of 64 bits, and numbers in single precision."""


def require(data: bytes, columns: Mapping[str, str], rows: int) -> None:
    """Check that a file holds these columns (name -> type) and rows, not compressed, without nulls, nothing else.

    Raises:
        ValueError: it does not, or it is no Parquet file; so do IndexError, KeyError and TypeError say.

    """
    size = int.from_bytes(data[-8:-4], "little")
    if data[:4] != MAGIC or data[-4:] != MAGIC or not 0 < size <= min(LONGEST, len(data) - 12):
        raise ValueError("no footer")
    end = len(data) - 8 - size
    said = _Compact(data[end : len(data) - 8]).struct()
    _only(said, _FILE)
    root, *elements = said[2]
    _only(root, _ELEMENT)
    if root.get(5) != len(elements) or len(elements) != len(columns) or said[3] != rows:
        raise ValueError("another table")
    for element, (name, kind) in zip(elements, columns.items(), strict=True):
        _only(element, _ELEMENT - {5})
        utf8 = element.get(6) == 0 if kind == "str" else not {6, 10} & set(element)
        if (element[1], element[3], element[4]) != (TYPES[kind], 0, name.encode()) or not utf8:
            raise ValueError("another column")
    if len(said[4]) > rows + 1 or sum(group[3] for group in said[4]) != rows:
        raise ValueError("another number of rows")
    for group in said[4]:
        _only(group, _GROUP)
        for chunk, (name, kind) in zip(group[1], columns.items(), strict=True):
            _only(chunk, _CHUNK)
            _require_chunk(chunk[3], name, TYPES[kind], group[3], end)


def _require_chunk(found: dict[int, Any], name: str, kind: int, rows: int, end: int) -> None:
    _only(found, _COLUMN)
    start = min(found[9], found.get(11, found[9]))
    inside = 4 <= start <= end and 0 <= found[7] <= end - start and found[6] == found[7] and found[9] <= end
    same = (found[1], found[3], found[4], found[5]) == (kind, [name.encode()], 0, rows)
    if not (inside and same and rows >= 0 and set(found[2]) <= _ENCODINGS):
        raise ValueError("a column chunk that is not as they are written here")


def _only(found: dict[int, Any], known: Collection[int]) -> None:
    if not set(found) <= set(known):
        raise ValueError("a field that is never written here")


class _Compact:
    """Reads values one after the other. No container has more members than there are bytes left."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.depth = data, 0, 0

    def struct(self) -> dict[int, Any]:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ValueError("too deep")
        found: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._signed()
            if number in found:
                raise ValueError("a field is there twice")
            kind = head & 15
            found[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        self.depth -= 1
        return found

    def _value(self, kind: int) -> Any:
        if kind in (1, 2, 3):  # in a list, a truth value is a byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 8:
            return self._bytes(self._unsigned())
        if kind == 9:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            if count > len(self.data) - self.at:
                raise ValueError("a list that is too long")
            return [self._value(head & 15) for _ in range(count)]
        if kind == 12:
            return self.struct()
        raise ValueError("a type that is never written here")

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError("text that is too long")
        self.at += count
        return self.data[self.at - count : self.at]

    def _unsigned(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found
            if shift > 63:
                raise ValueError("a number that is too long")

    def _signed(self) -> int:
        found = self._unsigned()
        return (found >> 1) ^ -(found & 1)
