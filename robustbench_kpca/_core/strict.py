"""Parse configuration files and records strictly: unknown, missing or invalid keys give a one-line error.

Pydantic is imported by the first check: commands that only read TOML do without it.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from robustbench_kpca._core.errors import BadInputError, reason_of, shortened
from robustbench_kpca._core.files import read_file
from robustbench_kpca._core.registry import did_you_mean

if TYPE_CHECKING:
    from pydantic import ConfigDict, ValidationError

FORBID: "ConfigDict" = {"extra": "forbid"}
STRICT: "ConfigDict" = {"extra": "forbid", "frozen": True}
T = TypeVar("T")
NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+"
"""A number of at least 0, as a pattern."""
_FRACTION = re.compile(rf"\s*({NUMBER})\s*(?:/\s*({NUMBER}))?\s*")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING = ("missing", "missing_argument")


def validate(kind: type[T], data: Any, where: str) -> T:
    """Build a `kind` (pydantic model or dataclass) from plain `data`; `where` names the source in error messages.

    Raises:
        BadInputError: the first invalid key; for a misspelt key, the message suggests the closest one.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        raise _one_line(kind, error, where) from None


def validate_json(kind: type[T], text: str | bytes, where: str) -> T:
    """Build a `kind` from a JSON text; errors as in `validate`."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise _one_line(kind, error, where) from None


def parse_fraction(text: str | float) -> float:
    """Convert `"8/255"`, `"0.03"` or a number to a float.

    Raises:
        BadInputError: the text is not a finite number or fraction >= 0.
    """
    match = _FRACTION.fullmatch(str(text))
    if match is None or (match[2] is not None and float(match[2]) == 0):
        raise BadInputError(f"'{text}' is not a number", expected="a number or a fraction such as 8/255")
    value = float(match[1]) / float(match[2] or 1)
    if value == float("inf"):
        raise BadInputError(f"'{text}' is not finite", expected="a number or a fraction such as 8/255")
    return value


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        BadInputError: the file is missing, unreadable or not valid TOML.
    """
    try:
        return tomllib.loads(read_file(path).decode())
    except (UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"{path} cannot be read ({reason_of(error)})", expected="a file in TOML") from None
    except ValueError as error:
        raise BadInputError(f"{path} is not valid TOML ({_place(error)})", fix="correct it there") from None


def _place(error: ValueError) -> str:
    """Say where a text stops to be TOML, from the message of the parser."""
    place = re.search(r"\(at (.+?)\)$", str(error))
    return f"at {place[1].replace('end of document', 'its end')}" if place else "a number has too many digits"


def parse_assignments(items: list[str]) -> dict[str, Any]:
    """Convert `["eps=3/255", "steps=40"]` to a mapping; values are parsed as TOML if possible, else plain strings.

    Raises:
        BadInputError: an item is not KEY=VALUE.
    """
    parsed: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise BadInputError(f"'{item}'", expected="KEY=VALUE, such as eps=3/255")
        if key.strip() in parsed:
            raise BadInputError(f"'{key.strip()}' is set twice", fix="set it once")
        try:
            parsed[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed[key.strip()] = value.strip()
        except ValueError:
            raise BadInputError(f"'{key.strip()[:60]}=…' has too many digits", expected="a shorter number") from None
        except RecursionError:
            raise BadInputError(f"'{key.strip()[:60]}=…' is nested too deeply", expected="a number or a word") from None
    return parsed


def assignment(key: str, value: Any) -> str:
    """Write KEY=VALUE so that `parse_assignments` reads the same: as plain text where that is enough, else as TOML."""
    return f"{key}={_spelt(value)}"


def _spelt(value: Any) -> str:
    if isinstance(value, str):
        return value if parse_assignments([f"key={value}"])["key"] == value else _quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_quoted(item) if isinstance(item, str) else _spelt(item) for item in value)}]"
    return repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_MOST = 10_000
"""Numbers in one range."""


def parse_ranges(text: str, problem: str) -> list[int]:
    """Parse whole numbers and ranges `FIRST-LAST`, separated by commas; `problem` stands for the text in an error.

    Raises:
        BadInputError: something else, or a range that runs backwards or is too long.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", part)
        if match is None:
            raise BadInputError(problem, expected="whole numbers and ranges, such as 0,1,2 or 5-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadInputError(problem, expected="ranges from the smaller to the larger, such as 5-7")
        if last - first >= _MOST:
            raise BadInputError(problem, expected=f"ranges of at most {_MOST:,} numbers")
        numbers += range(first, last + 1)
    return numbers


def _one_line(kind: type[Any], error: "ValidationError", where: str) -> BadInputError:
    # A misspelt key gives two errors, "unknown" and "missing": report the first.
    unknown = [detail for detail in error.errors() if detail["type"] in _UNKNOWN]
    first = (unknown or error.errors())[0]
    key = ".".join(str(part) for part in first["loc"]) or "value"
    if unknown:
        fields = list(getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", {}))
        name = str(first["loc"][-1])
        hint = did_you_mean(name, fields) if fields and len(first["loc"]) == 1 else "correct or remove it"
        return BadInputError(f"{where}: unknown key '{key}'", fix=hint)
    if first["type"] in _MISSING:
        places = [detail["loc"] for detail in error.errors() if detail["type"] in _MISSING]
        beside = [".".join(map(str, place)) for place in places if place[:-1] == first["loc"][:-1]]
        if len(beside) > 1:
            names = ", ".join(f"'{name}'" for name in beside)
            return BadInputError(f"{where}: the keys {names} are missing", fix="add them")
        return BadInputError(f"{where}: key '{key}' is missing", fix="add it")
    if first["type"] == "json_invalid":  # shows nothing of the file, which may be anybody's
        return BadInputError(f"{where} is not valid JSON", fix="correct it")
    if "error" in first.get("ctx", {}) and first["type"] == "value_error":  # raised by a check of this package
        return BadInputError(f"{where}: {key}: {first['ctx']['error']}", fix="correct it")
    value = shortened(repr(first["input"]), 60)
    return BadInputError(f"{where}: {key} = {value} is invalid", expected=expected_by(first), fix="correct it")


_EXPECTED = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "union_tag_invalid": "{expected_tags}",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "string_too_short": "a text of at least {min_length} characters",
    "string_too_long": "a text of at most {max_length} characters",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "frozen": "a list",
    "set": "a list",
    "dict": "a table",
    "mapping": "a table",
    "model": "a table",
    "dataclass": "a table",
    "union": "a table with a known kind",
    "none": "nothing",
    "date": "a date",
    "datetime": "a date with a time",
    "path": "a path",
}


def expected_by(error: Mapping[str, Any]) -> str:
    """Say what was expected where pydantic found an error; `error` is one of `ValidationError.errors()`."""
    kind, about = str(error["type"]), error.get("ctx", {})
    if kind in _EXPECTED:
        return _EXPECTED[kind].format(**about)
    return _KINDS.get(kind.partition("_")[0], "another value")
