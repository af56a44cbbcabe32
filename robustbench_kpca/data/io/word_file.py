"""Read files of words, one line a paragraph: as many lines at once as needed, whatever the size of the file."""

from collections.abc import Iterator
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import require_file

LONGEST = 2**24
"""Bytes of a line; WikiText's longest has about 20,000."""


def lines_of(path: Path) -> Iterator[str]:
    """Yield every line without its end. A last line without a line feed is a line; an empty rest after it is none.

    Raises:
        BadInputError: the file is empty or cannot be read, a line is too long, not in UTF-8, or has NUL characters.

    """
    require_file(path)
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                yield _text(path, number, line)
    except OSError as error:
        raise BadInputError(f"{path} cannot be read ({reason_of(error)})", fix="check the path") from None
    if not number:
        raise BadInputError(f"{path} is empty", expected="a text", fix="copy the file again")


def _text(path: Path, number: int, line: bytes) -> str:
    if len(line) > LONGEST:
        raise BadInputError(f"{path}, line {number} has more than {LONGEST} bytes", expected="a line for a paragraph")
    if b"\0" in line:
        raise BadInputError(f"{path}, line {number} has a NUL character", expected="a text", fix="copy the file again")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"{path}, line {number} cannot be read ({reason_of(error)})", expected="a text in UTF-8"
        ) from None
