"""Read mask files: map declared ids to classes; any other value is an error."""

import csv
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import require_file
from robustbench_kpca.data.io.reading import open_image, require_whole
from robustbench_kpca.types import IGNORE

IDS = {"1", "L", "P", "I", "I;16", "I;16L", "I;16B"}  # Pillow modes with one number per pixel
STRIP = 2**20  # number of pixels converted at a time, to save memory
_IGNORED = "ignore"


@dataclass(frozen=True)
class Labelling:
    """The meaning of the values in mask files.

    Attributes:
        ids: id -> class or IGNORE, for every allowed id.
        palette: uint8 (classes, 3), or None for distinct colours.
    """

    class_names: tuple[str, ...]
    ids: Mapping[int, int]
    palette: NDArray[np.uint8] | None = None

    def digest(self) -> str:
        """Digest of the meaning of ids; class names and palette are excluded."""
        text = repr((len(self.class_names), sorted(self.ids.items()), []))  # an empty list, as records have it
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, path: Path) -> NDArray[np.int16]:
        """Decode a mask: int16 (height, width), classes or IGNORE.

        A file with a colour table is read by its indices.

        Raises:
            BadInputError: an unreadable file, one of colours, an undeclared id, or a mask in which every pixel is
                ignored.
        """
        stored = _stored(path)
        keys = np.array(sorted(self.ids), np.int32)
        labels = np.array([self.ids[int(key)] for key in keys], np.int16)
        height, width = stored.shape[0], stored.shape[1]
        mask = np.empty((height, width), np.int16)
        rows = max(1, STRIP // max(1, width))
        for top in range(0, height, rows):
            numbers = stored[top : top + rows].astype(np.int32)
            places = np.searchsorted(keys, numbers).clip(max=len(keys) - 1)
            foreign = np.argwhere(keys[places] != numbers)
            if len(foreign):
                row, column = (int(place) for place in foreign[0])
                raise BadInputError(
                    f"mask {path} contains id {numbers[row, column]} at row {top + row}, column {column}",
                    expected=_ranges(keys.tolist()),
                )
            mask[top : top + rows] = labels[places]
        if not (mask != IGNORE).any():
            raise BadInputError(f"mask {path} is empty: every pixel is ignored", fix="leave the image out")
        return mask


def _stored(path: Path) -> NDArray[np.generic]:
    with open_image(path, what="mask") as file:
        require_whole(file, path)
        if file.mode not in IDS:
            raise BadInputError(f"mask {path} has mode {file.mode}", expected="ids (one channel)")
        return np.asarray(file)


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
    """Read a `classes.csv` with the columns `id` and `name`.

    Classes are numbered in the order of their ids. Rows named `ignore` are not classes; their pixels become IGNORE.

    Raises:
        BadInputError: a missing file or column, an invalid number, a repeated id or name, or no class.
    """
    require_file(table)
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
        entries = sorted((int(row["id"]), row["name"].strip()) for row in rows)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, csv.Error) as error:
        raise BadInputError(f"{table} cannot be used ({reason_of(error)})", expected="columns id, name") from None
    names = [name for _, name in entries if name.lower() != _IGNORED]
    for what, values in (("id", [key for key, _ in entries]), ("name", names)):
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            raise BadInputError(f"{table} has {what} {twice[0]} twice", expected="each once")
    if not names or not all(names) or not 0 <= entries[0][0] <= entries[-1][0] < 2**16:
        raise BadInputError(f"{table} declares {len(names)} classes", expected="names, and ids from 0 to 65535")
    number = {name: label for label, name in enumerate(names)}
    return Labelling(tuple(names), {key: number.get(name, IGNORE) for key, name in entries})
