"""Columns of text as numbers: the texts of a large table repeat, and each is kept once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]


@dataclass(frozen=True)
class Coded:
    """A column of text: row i is `values[codes[i]]`. Values differ from each other; some may occur in no row."""

    codes: NDArray[np.int32]
    values: NDArray[np.object_]

    @classmethod
    def of(cls, texts: Iterable[Any]) -> "Coded":
        """Give each different text a number, in order of appearance."""
        place: dict[Any, int] = {}
        codes = [place.setdefault(text, len(place)) for text in texts]
        values = np.empty(len(place), dtype=object)
        values[:] = [intern(text) if type(text) is str else text for text in place]
        return cls(np.array(codes, dtype=np.int32), values)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> "Coded":
        return Coded(self.codes[rows], self.values)

    @classmethod
    def joined(cls, parts: Sequence["Coded"]) -> "Coded":
        """Return columns below each other as one."""
        texts = cls.of(text for part in parts for text in part.values)
        ends = np.cumsum([len(part.values) for part in parts])
        places = np.split(texts.codes, ends[:-1])
        return cls(np.concatenate([place[part.codes] for place, part in zip(places, parts, strict=True)]), texts.values)

    def tiled(self, times: int) -> "Coded":
        """Return the column so many times below itself."""
        return Coded(np.tile(self.codes, times), self.values)

    def repeated(self, times: int) -> "Coded":
        """Return the column with every row so many times."""
        return Coded(np.repeat(self.codes, times), self.values)

    def text(self) -> NDArray[np.object_]:
        """Return the texts, row by row."""
        return np.asarray(self.values[self.codes])

    def equals(self, text: str) -> NDArray[np.bool_]:
        """Tell which rows hold this text."""
        return np.asarray((self.values == text)[self.codes])

    def compact(self) -> tuple["Coded", NDArray[np.int64]]:
        """Return the same column, its values in order of appearance and none without a row; and their first rows."""
        rows = len(self.codes)
        first = np.full(len(self.values), rows)
        first[self.codes[::-1]] = np.arange(rows - 1, -1, -1)  # the last assignment stays: the first row
        used = np.flatnonzero(first < rows)
        order = used[np.argsort(first[used])]
        if len(order) == len(self.values) and (order == np.arange(len(order))).all():
            return self, first
        place = np.zeros(len(self.values), np.int32)
        place[order] = np.arange(len(order))
        return Coded(place[self.codes], self.values[order]), first[order]


class Columns(Mapping[str, Column]):
    """Columns by name, text as `Coded`; as a mapping it gives the texts themselves."""

    def __init__(self, columns: Mapping[str, Column | Coded]) -> None:
        self._held = dict(columns)

    def __getitem__(self, name: str) -> Column:
        column = self.held(name)
        return column.text() if isinstance(column, Coded) else column

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, name: object) -> bool:
        return any(name == column for column in self)  # Mapping's own would read the column

    def held(self, name: str) -> Column | Coded:
        """Return a column as it is kept."""
        return self._held[name]


def joined(parts: Sequence[Column | Coded]) -> Column | Coded:
    """Return columns of one kind below each other as one."""
    coded = [part for part in parts if isinstance(part, Coded)]
    return Coded.joined(coded) if coded else np.concatenate([part for part in parts if not isinstance(part, Coded)])
