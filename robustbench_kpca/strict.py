"""Parse configuration files and records strictly: unknown, missing or invalid keys give a one-line error.

Pydantic is imported by the first check: commands that only read TOML do without it.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import read_file

if TYPE_CHECKING:
    from pydantic import ConfigDict, ValidationError

FORBID: "ConfigDict" = {"extra": "forbid"}
STRICT: "ConfigDict" = {"extra": "forbid", "frozen": True}
T = TypeVar("T")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


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


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        BadInputError: the file is missing, unreadable or not valid TOML.

    """
    try:
        return tomllib.loads(read_file(path).decode())
    except UnicodeDecodeError as error:
        raise BadInputError(f"cannot read {path} ({error})", expected="text in UTF-8") from None
    except ValueError as error:  # also a number of thousands of digits
        raise BadInputError(f"{path} is not valid TOML ({error})", fix="correct that line") from None
    except RecursionError:
        raise BadInputError(f"{path} is nested too deeply", expected="a few levels of tables and lists") from None


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
        return f"[{', '.join(_quoted(one) if isinstance(one, str) else _spelt(one) for one in value)}]"
    return repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_MOST = 10_000
"""Numbers in one range."""


def parse_ranges(text: str, met: str) -> list[int]:
    """Parse whole numbers and ranges `FIRST-LAST`, separated by commas; `met` stands for the text in an error.

    Raises:
        BadInputError: something else, or a range that runs backwards or is too long.

    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", part)
        if match is None:
            raise BadInputError(met, expected="whole numbers and ranges, such as 0,1,2 or 5-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadInputError(met, expected="ranges from the smaller to the larger, such as 5-7")
        if last - first >= _MOST:
            raise BadInputError(met, expected=f"ranges of at most {_MOST:,} numbers")
        found += range(first, last + 1)
    return found


def did_you_mean(name: str, known: Mapping[str, Any] | list[str]) -> str:
    """Return `did you mean 'steps'?`, or the list of known names if none is similar.

    A known name that is a prefix of `name`, or the reverse (`eps` for `epsilon`), is preferred over a similar spelling.
    """
    prefixes = [one for one in known if len(one) > 2 and (name.startswith(one) or (name and one.startswith(name)))]
    close = prefixes or difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"


def _one_line(kind: type[Any], error: "ValidationError", where: str) -> BadInputError:
    # A misspelt key gives two errors, "unknown" and "missing": report the first.
    unknown = [one for one in error.errors() if one["type"] in _UNKNOWN]
    first = (unknown or error.errors())[0]
    key = ".".join(str(part) for part in first["loc"]) or "value"
    if unknown:
        fields = list(getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", {}))
        name = str(first["loc"][-1])
        hint = did_you_mean(name, fields) if fields and len(first["loc"]) == 1 else "correct or remove it"
        return BadInputError(f"{where}: unknown key '{key}'", fix=hint)
    if first["type"] in ("missing", "missing_argument"):
        return BadInputError(f"{where}: key '{key}' is missing", fix="add it")
    shown = repr(first["input"])
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return BadInputError(f"{where}: {key} = {shown} is invalid ({first['msg']})", fix="correct it")
