"""Read tables of texts with one label each: `.tsv` and `.csv` files whose first row names the columns.

The text is in a column `text`, `sentence` or `review`, and the label in `label` or `sentiment`; other columns are
ignored. A `.tsv` file has no quotes, as GLUE's SST-2; a `.csv` file has those of spreadsheets, as the table of IMDB
reviews. Only the pairs that the Long Range Arena published name no columns: see `ARENA_PAIRS`.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from robustbench_kpca._core.errors import AbsentPartError, BadInputError, reason_of
from robustbench_kpca.data.io.place import natural

MOST_BYTES = 2**32
"""The largest file that is read."""
MOST_ROWS = 10**7
"""The most lines that are read of a file."""
MOST_LETTERS = 2**24
"""The longest cell that is read. Python's own limit, 131,072, is below the length of some papers."""
TEXT = ("text", "sentence", "review")
"""Names that the column of texts may have."""
LABEL = ("label", "sentiment")
"""Names that the column of labels may have."""
SPLITS = {"test": ("test",), "val": ("val", "dev"), "train": ("train",)}
"""Split -> names that its file may have, before the suffix."""
ARENA_PAIRS = {split: f"new_aan_pairs.{split.replace('val', 'eval')}.tsv" for split in SPLITS}
"""Split -> the file of the pairs that the Long Range Arena published."""
ARENA_COLUMNS = ["label", "id1", "id2", "text1", "text2"]
"""Contents of the columns of these files, whose first row is a pair."""


def find_table(root: Path, split: str) -> Path:
    """Return the table of a split.

    Raises:
        AbsentPartError: the folder has none.
        BadInputError: it has several.
    """
    names = [f"{stem}{suffix}" for stem in SPLITS[split] for suffix in (".tsv", ".csv")]
    tables = [root / name for name in [*names, ARENA_PAIRS[split]] if (root / name).is_file()]
    if len(tables) != 1:
        kind = BadInputError if tables else AbsentPartError
        raise kind(
            f"{root} has {len(tables)} tables of {split}",
            expected=f"one of {', '.join(names)}",
            fix="add it, or choose another --split",
        )
    return tables[0]


def labelled(path: Path, train: Path, *columns: tuple[str, ...]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the rows of a table, and the classes, which are the labels of the training part in natural order.

    Args:
        path: the table of the split.
        train: the table of the training part, perhaps the same.
        columns: as in `read_rows`.

    Raises:
        BadInputError: as `read_rows`; or a class that the training part does not have.
    """
    rows = list(read_rows(path, *columns))
    training_rows = rows if path == train else read_rows(train, *columns)
    classes = sorted({row[-1] for row in training_rows}, key=natural)
    unknown = next((row[-1] for row in rows if row[-1] not in classes), None)
    if unknown is not None:
        raise BadInputError(
            f"class '{unknown[:40]}' in {path.stem}", expected=f"one of those in train: {', '.join(classes)[:80]}"
        )
    return rows, classes


def read_rows(path: Path, *columns: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of every row in the wanted columns.

    Args:
        columns: the names that each column may have, such as `TEXT`; the last column holds the labels.

    Raises:
        AbsentPartError: there is no column of labels, as in the test parts that GLUE publishes.
        BadInputError: the file cannot be read, is too large, or has no column of texts; or a row is too short.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInputError(f"{path} has {path.stat().st_size} bytes", expected=f"at most {MOST_BYTES}")
        with _long_cells(), path.open(encoding="utf-8-sig", newline="") as file:
            tabs = path.suffix.lower() == ".tsv"
            rows = csv.reader(
                file, delimiter="\t" if tabs else ",", quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
            )
            arena = path.name in ARENA_PAIRS.values()
            header = ARENA_COLUMNS if arena else [name.strip().lower() for name in next(rows, [])]
            places = [_place(path, header, names) for names in columns]
            for row in filter(None, rows):
                yield _row(path, rows.line_num, row, places)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(
            f"{path} cannot be read ({reason_of(error)})", expected="a table of texts and labels, UTF-8"
        ) from None


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells have up to `MOST_LETTERS` letters here; elsewhere, the limit of the process stays."""
    limit = csv.field_size_limit(MOST_LETTERS)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _place(path: Path, header: list[str], names: tuple[str, ...]) -> int:
    place = next((header.index(name) for name in names if name in header), None)
    if place is None:
        kind = AbsentPartError if names == LABEL else BadInputError
        raise kind(
            f"{path} has the columns {', '.join(header)[:80] or 'none'}", expected=f"a column {' or '.join(names)}"
        )
    return place


def _row(path: Path, line: int, row: list[str], places: list[int]) -> tuple[str, ...]:
    """Return the wanted cells of a row, whose label may not be empty."""
    if line > MOST_ROWS or max(places) >= len(row) or not row[places[-1]].strip():
        texts = "a text" if len(places) == 2 else f"{len(places) - 1} texts"
        raise BadInputError(
            f"{path}, line {line}: {len(row)} columns", expected=f"{texts} and a label, in at most {MOST_ROWS} lines"
        )
    return (*(row[place] for place in places[:-1]), row[places[-1]].strip())
