"""Read mask files: map declared ids or colours to classes; any other value is an error."""

import csv
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of
from robustbench_kpca._core.files import require_file
from robustbench_kpca.data.io.reading import open_image, require_whole
from robustbench_kpca.types import IGNORE

IDS = {"1", "L", "P", "I", "I;16", "I;16L", "I;16B"}  # Pillow modes with one number per pixel
COLOURS = {"RGB", "RGBA", "P"}
STRIP = 2**20  # number of pixels converted at a time, to save memory
_IGNORED = "ignore"
_Numbers = NDArray[np.int32]


@dataclass(frozen=True)
class Labelling:
    """The meaning of the values in mask files.

    Attributes:
        ids: id -> class or IGNORE, for every allowed id.
        colours: (red, green, blue) -> class or IGNORE, for every allowed colour; empty if masks contain ids.
        palette: uint8 (classes, 3), or None for distinct colours.
    """

    class_names: tuple[str, ...]
    ids: Mapping[int, int]
    colours: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    palette: NDArray[np.uint8] | None = None

    def digest(self) -> str:
        """Digest of the meaning of ids and colours; class names and palette are excluded."""
        text = repr((len(self.class_names), sorted(self.ids.items()), sorted(self.colours.items())))
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, path: Path) -> NDArray[np.int16]:
        """Decode a mask: int16 (height, width), classes or IGNORE.

        Files with one channel contain ids, files with three contain colours. A file with a colour table is read by its
        colours if colours are declared, else by its indices. Alpha is dropped.

        Raises:
            BadInputError: an unreadable file, an undeclared id or colour, or a mask in which every pixel is ignored.
        """
        stored, by_colour = self._stored(path)
        labels_of = {_packed(colour): label for colour, label in self.colours.items()} if by_colour else dict(self.ids)
        keys = np.array(sorted(labels_of), np.int32)
        labels = np.array([labels_of[int(key)] for key in keys], np.int16)
        height, width = stored.shape[0], stored.shape[1]
        mask = np.empty((height, width), np.int16)
        rows = max(1, STRIP // max(1, width))
        for top in range(0, height, rows):
            numbers = _numbers(stored[top : top + rows])
            places = np.searchsorted(keys, numbers).clip(max=len(keys) - 1)
            foreign = np.argwhere(keys[places] != numbers)
            if len(foreign):
                row, column = (int(place) for place in foreign[0])
                raise _undeclared(path, int(numbers[row, column]), (top + row, column), by_colour, self)
            mask[top : top + rows] = labels[places]
        if not (mask != IGNORE).any():
            raise BadInputError(f"mask {path} is empty: every pixel is ignored", fix="leave the image out")
        return mask

    def _stored(self, path: Path) -> tuple[NDArray[np.generic], bool]:
        with open_image(path, what="mask") as file:
            require_whole(file, path)
            by_colour = file.mode in COLOURS and (file.mode not in IDS or bool(self.colours))
            if by_colour and not self.colours:
                raise BadInputError(
                    f"mask {path} contains colours ({file.mode})", expected="ids, or r, g and b in classes.csv"
                )
            if not by_colour and file.mode not in IDS:
                raise BadInputError(f"mask {path} has mode {file.mode}", expected="ids (grey) or colours (RGB)")
            if by_colour and file.mode != "RGB":
                return np.asarray(file.convert("RGBA").convert("RGB")), True
            return np.asarray(file), by_colour


def _packed(colour: tuple[int, int, int]) -> int:
    return colour[0] << 16 | colour[1] << 8 | colour[2]


def _numbers(stored: NDArray[np.generic]) -> _Numbers:
    numbers = stored.astype(np.int32)
    if numbers.ndim == 2:
        return numbers
    return numbers[..., 0] << 16 | numbers[..., 1] << 8 | numbers[..., 2]


def _undeclared(
    path: Path, number: int, place: tuple[int, int], by_colour: bool, labelling: Labelling
) -> BadInputError:
    what = f"colour ({number >> 16}, {number >> 8 & 255}, {number & 255})" if by_colour else f"id {number}"
    declared = f"{len(labelling.colours)} declared colours" if by_colour else _ranges(sorted(labelling.ids))
    return BadInputError(f"mask {path} contains {what} at row {place[0]}, column {place[1]}", expected=declared)


def _ranges(ids: list[int]) -> str:
    """Write 0, 1, 2, 255 as "0-2, 255"."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return "ids " + ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def read_table(table: Path) -> Labelling:
    """Read a `classes.csv`: columns `id` and `name` and, for masks with colours, `r`, `g` and `b`.

    Classes are numbered in the order of their ids. Rows named `ignore` are not classes; their pixels become IGNORE.

    Raises:
        BadInputError: a missing file or column, an invalid number, a repeated id, name or colour, or no class.
    """
    require_file(table)
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
        coloured = bool(rows) and {"r", "g", "b"} <= set(rows[0])
        entries = sorted((int(row["id"]), row["name"].strip(), _colour(row) if coloured else None) for row in rows)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, csv.Error) as error:
        raise BadInputError(
            f"{table} cannot be used ({reason_of(error)})", expected="columns id, name[, r, g, b]"
        ) from None
    names = [name for _, name, _ in entries if name.lower() != _IGNORED]
    for what, values in (("id", [e[0] for e in entries]), ("name", names), ("colour", [e[2] for e in entries])):
        twice = [value for value, count in Counter(values).items() if count > 1 and value is not None]
        if twice:
            raise BadInputError(f"{table} has {what} {twice[0]} twice", expected="each once")
    if not names or not all(names) or not 0 <= entries[0][0] <= entries[-1][0] < 2**16:
        raise BadInputError(f"{table} declares {len(names)} classes", expected="names, and ids from 0 to 65535")
    number = {name: label for label, name in enumerate(names)}
    labels = [(key, number.get(name, IGNORE), colour) for key, name, colour in entries]
    palette = [colour for _, label, colour in labels if label != IGNORE and colour is not None]
    return Labelling(
        class_names=tuple(names),
        ids={key: label for key, label, _ in labels},
        colours={colour: label for _, label, colour in labels if colour is not None},
        palette=np.array(palette, np.uint8) if coloured else None,
    )


def _colour(row: Mapping[str, str]) -> tuple[int, int, int]:
    red, green, blue = (int(row[part]) for part in "rgb")
    if not all(0 <= part <= 255 for part in (red, green, blue)):
        raise UnfitError(f"colour {red}, {green}, {blue}")
    return red, green, blue
