"""Read tables of texts with one label each: `.tsv` and `.csv` files whose first row names the columns.

A text is in a column `text`, `sentence` or `review`, the label in `label` or `sentiment`; other columns are ignored. A
`.tsv` file has no quotes, as GLUE's SST-2; a `.csv` file has those of spreadsheets, as the table of IMDB reviews. The
pairs that the Long Range Arena published have no such row: `HEADERS`.
"""

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from robustbench_kpca._core.errors import AbsentPartError, BadInputError, reason_of
from robustbench_kpca.data.io.place import natural

MOST_BYTES = 2**32
MOST_ROWS = 10**7
MOST_LETTERS = 2**24
"""Of a cell; Python's own limit, 131,072, is below the length of some papers."""
TEXT, LABEL = ("text", "sentence", "review"), ("label", "sentiment")
SPLITS = {"test": ("test",), "val": ("val", "dev"), "train": ("train",)}
HEADERS: Mapping[str, list[str]] = {
    f"new_aan_pairs.{part}.tsv": ["label", "id1", "id2", "text1", "text2"] for part in ("train", "eval", "test")
}
"""Names of the columns of files that do not name them."""


def find_table(root: Path, split: str) -> Path:
    """Return the table of a split.

    Raises:
        AbsentPartError: the folder has none.
        BadInputError: it has several.
    """
    names = [f"{stem}{suffix}" for stem in SPLITS[split] for suffix in (".tsv", ".csv")]
    published = f"new_aan_pairs.{'eval' if split == 'val' else split}.tsv"
    tables = [root / name for name in [*names, published] if (root / name).is_file()]
    if len(tables) != 1:
        kind = BadInputError if tables else AbsentPartError
        raise kind(
            f"{root} has {len(tables)} tables of {split}",
            expected=f"one of {', '.join(names)}",
            fix="add it, or choose another --split",
        )
    return tables[0]


def labelled(path: Path, train: Path, *columns: tuple[str, ...]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the rows of a table, and the classes of the training part; the last column is the label.

    Raises:
        BadInputError: as `read_rows`; or a class that the training part does not have.
    """
    rows = list(read_rows(path, *columns))
    of_train = rows if path == train else read_rows(train, *columns)
    classes = sorted({row[-1] for row in of_train}, key=natural)
    odd = next((row[-1] for row in rows if row[-1] not in classes), None)
    if odd is not None:
        raise BadInputError(
            f"class '{odd[:40]}' in {path.stem}", expected=f"one of those in train: {', '.join(classes)[:80]}"
        )
    return rows, classes


def read_rows(path: Path, *columns: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of every row in the wanted columns, each known by several names; the last one is the label.

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
            header = HEADERS.get(path.name) or [name.strip().lower() for name in next(rows, [])]
            places = [_column(path, header, names) for names in columns]
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


def _column(path: Path, header: list[str], names: tuple[str, ...]) -> int:
    column = next((header.index(name) for name in names if name in header), None)
    if column is None:
        kind = AbsentPartError if names == LABEL else BadInputError
        raise kind(
            f"{path} has the columns {', '.join(header)[:80] or 'none'}", expected=f"a column {' or '.join(names)}"
        )
    return column


def _row(path: Path, line: int, row: list[str], places: list[int]) -> tuple[str, ...]:
    if line > MOST_ROWS or max(places) >= len(row) or not row[places[-1]].strip():
        texts = "a text" if len(places) == 2 else f"{len(places) - 1} texts"
        raise BadInputError(
            f"{path}, line {line}: {len(row)} columns", expected=f"{texts} and a label, in at most {MOST_ROWS} lines"
        )
    return (*(row[place] for place in places[:-1]), row[places[-1]].strip())
