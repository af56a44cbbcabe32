"""The sizes of a set that are requested as NAME=NUMBER, and the rest of the request: `side=16,train=4000:FOLDER`."""

from dataclasses import asdict, fields
from typing import Any, TypeVar

from robustbench_kpca._core.errors import BadInputError

Size = TypeVar("Size")


def sized(kind: type[Size], name: str, text: str) -> tuple[Size, str]:
    """Return the sizes, a dataclass of numbers, and what stands behind them."""
    head, _, rest = text.partition(":") if "=" in text.partition(":")[0] else ("", "", text)
    names, sizes = [field.name for field in fields(kind)], {}  # type: ignore[arg-type]
    for part in head.split(",") if head else ():
        key, _, value = part.partition("=")
        if key not in names or key in sizes or not value.isdecimal() or len(value) > 9:
            raise BadInputError(f"{name}:{text}", expected=f"NAME=NUMBER,... with NAME of {', '.join(names)}")
        sizes[key] = int(value)
    return kind(**sizes), rest


def require_within(size: Any, name: str, low: dict[str, int], most: dict[str, int]) -> None:
    """Refuse sizes below `low` (by default 1) or above `most`."""
    for key, value in asdict(size).items():
        least, limit = low.get(key, 1), most.get(key, 2**24 - 1)
        if not least <= value <= limit:
            raise BadInputError(f"{name} with {key} = {value}", expected=f"at least {least} and at most {limit}")


def name_of(name: str, size: Any) -> str:
    """Return the name of the set, with the sizes that are not the usual ones."""
    changed = {key: value for key, value in asdict(size).items() if value != getattr(type(size), key)}
    return "-".join([name, *(f"{key}{value}" for key, value in changed.items())])
