"""Read `.ts` files, the format in which the UEA & UCR archives publish time series (that of sktime and aeon).

Lines that begin with `#` are comments and lines that begin with `@` are the header; tags are read in any case. After
`@data` each line is a series: dimensions separated by `:`, values by `,`, and at the end `:` and the class label. `?`
and `NaN` are missing values. Nothing in a file is run, and its size is limited.

Bagnall et al. (2018), "The UEA multivariate time series classification archive", arXiv:1811.00075.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import require_file

MOST_BYTES = 4 * 2**30  # bytes of a file; the largest of the archive has about 1 GiB
MOST_VALUES = 2 * 10**8  # numbers of all series together: 1.6 GB

Series = list[NDArray[np.float64]]
"""The dimensions of one series, which may differ in length; missing values are NaN."""


@dataclass(frozen=True)
class TimeSeriesFile:
    """A parsed file; `labels` are numbers in `classes`, which are in the order of the header."""

    name: str
    classes: tuple[str, ...]
    series: list[Series]
    labels: list[int]

    @property
    def dimensions(self) -> int:
        """Number of dimensions of each series."""
        return len(self.series[0])

    @property
    def longest(self) -> int:
        """Length of the longest dimension of any series."""
        return max(len(values) for dimensions in self.series for values in dimensions)


def read_ts(path: Path) -> TimeSeriesFile:
    """Read a `.ts` file.

    Raises:
        BadInputError: the file is missing, too large, or damaged; it has time stamps or no class labels. The message
            names the line.
    """
    reader = _Reader(path)
    require_file(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInputError(f"{path} has {path.stat().st_size} bytes", expected=f"at most {MOST_BYTES}")
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                reader.take(number, line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{path} cannot be read ({reason_of(error)})", expected="a .ts file of the UEA archive"
        ) from None
    return reader.finished()


class _Reader:
    """What was read so far; `take` gets one line after the other."""

    def __init__(self, path: Path) -> None:
        self.path, self.line, self.longest = path, 0, 0
        self.header: dict[str, list[str]] = {}
        self.classes: tuple[str, ...] = ()  # known from @data on
        self.series: list[Series] = []
        self.labels: list[int] = []

    def take(self, number: int, line: str) -> None:
        self.line = number
        if not line or line.startswith("#"):
            return
        if self.classes:
            self._add(line)
        elif line.startswith("@"):
            self._note(line)
        else:
            raise self._bad(f"'{line[:40]}' before @data", "a line of the header, which begins with @")

    def finished(self) -> TimeSeriesFile:
        if not self.series:
            raise self._bad("no series", "@data, and a line for each series")
        name = "".join(self.header.get("problemname", [])) or re.sub("_(TRAIN|TEST)$", "", self.path.stem)
        return TimeSeriesFile(name, self.classes, self.series, self.labels)

    def _note(self, line: str) -> None:
        tag, *words = line[1:].split() or [""]
        self.header[tag.lower()] = words
        if tag.lower() == "timestamps" and [word.lower() for word in words] != ["false"]:
            raise self._bad(line[:40], "@timeStamps false: values without time stamps")
        if tag.lower() == "data":
            labelled, *classes = self.header.get("classlabel") or ["false"]
            if labelled.lower() != "true" or len(classes) < 2 or len(set(classes)) < len(classes):
                raise self._bad("no class labels", "@classLabel true and the names of at least two classes")
            self.classes = tuple(classes)

    def _add(self, line: str) -> None:
        *dimensions, label = (part.strip() for part in line.split(":"))
        if label not in self.classes:
            raise self._bad(f"class '{label[:40]}'", f"one of {', '.join(self.classes[:8])}")
        expected = len(self.series[0]) if self.series else max(len(dimensions), 1)
        if len(dimensions) != expected:
            raise self._bad(f"{len(dimensions)} dimensions", f"{expected}, separated by ':' and followed by the class")
        series = [self._numbers(text) for text in dimensions]
        self.series.append(series)
        self.longest = max(self.longest, *map(len, series))
        if len(self.series) * len(series) * self.longest > MOST_VALUES:  # shorter series are padded
            raise self._bad(f"more than {MOST_VALUES} values", "a smaller file, or fewer long series")
        self.labels.append(self.classes.index(label))

    def _numbers(self, text: str) -> NDArray[np.float64]:
        fields = [field.strip() for field in text.split(",")]
        try:
            if "_" in text or "(" in text:
                raise ValueError(text[:20])
            numbers = np.array([np.nan if field in ("?", "NaN") else float(field) for field in fields])
        except ValueError:
            raise self._bad(f"values '{text[:30]}'", "numbers separated by ',', and ? for missing ones") from None
        if np.isinf(numbers).any():
            raise self._bad("an infinite value", "finite numbers")
        return numbers

    def _bad(self, problem: str, expected: str) -> BadInputError:
        return BadInputError(f"{self.path}, line {self.line}: {problem}", expected=expected)
