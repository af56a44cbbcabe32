"""Read tables of texts with one label each: `.tsv` and `.csv` files whose first row names the columns.

The text is in a column `text`, `sentence` or `review`, the label in `label` or `sentiment`; other columns are ignored.
A `.tsv` file has no quotes, as GLUE's SST-2; a `.csv` file has those of spreadsheets, as the table of IMDB reviews.
"""

import csv
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError, reason_of

MOST_BYTES = 2**30
MOST_ROWS = 10**7
TEXT, LABEL = ("text", "sentence", "review"), ("label", "sentiment")


def read_texts(path: Path) -> list[tuple[str, str]]:
    """Return (text, label) of every row.

    Raises:
        BadInputError: the file cannot be read, is too large, or has no such columns; or a row is too short.

    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInputError(f"{path} has {path.stat().st_size} bytes", expected=f"at most {MOST_BYTES}")
        with path.open(encoding="utf-8-sig", newline="") as file:
            tabs = path.suffix.lower() == ".tsv"
            rows = csv.reader(
                file, delimiter="\t" if tabs else ",", quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
            )
            header = [name.strip().lower() for name in next(rows, [])]
            text, label = _column(path, header, TEXT), _column(path, header, LABEL)
            return [_row(path, rows.line_num, row, text, label) for row in rows if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(
            f"{path} cannot be read ({reason_of(error)})", expected="a table of texts and labels, UTF-8"
        ) from None


def _column(path: Path, header: list[str], names: tuple[str, ...]) -> int:
    found = next((header.index(name) for name in names if name in header), None)
    if found is None:
        raise BadInputError(
            f"{path} has the columns {', '.join(header)[:80] or 'none'}", expected=f"a column {' or '.join(names)}"
        )
    return found


def _row(path: Path, line: int, row: list[str], text: int, label: int) -> tuple[str, str]:
    if line > MOST_ROWS or max(text, label) >= len(row) or not row[label].strip():
        raise BadInputError(
            f"{path}, line {line}: {len(row)} columns", expected=f"a text and a label, in at most {MOST_ROWS} lines"
        )
    return row[text], row[label].strip()
