"""Parts of a corruption grid: lists of corruptions and severities, checked for repetitions and range."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, Field

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import STRICT
from robustbench_kpca.protocols.corruption_names import SEVERITIES

T = TypeVar("T")


def distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    """Return the values; refuse repeated ones."""
    if len(set(values)) != len(values):
        raise BadInputError(f"{list(values)} contains a value twice", expected="each value once")
    return values


def check_severity(severity: int) -> None:
    """Refuse a severity that is not an integer from 1 to 5.

    Raises:
        BadInputError: another value.
    """
    if type(severity) is not int or severity not in SEVERITIES:
        raise BadInputError(f"severity {severity}", expected="1, 2, 3, 4 or 5 (5 is the strongest)")


def valid_severities(severities: tuple[int, ...]) -> tuple[int, ...]:
    """Return the severities; refuse repeated ones and those outside 1 to 5."""
    for severity in severities:
        check_severity(severity)
    return distinct(severities)


Corruptions = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(distinct)]
Severities = Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(valid_severities)]


class Cells(BaseModel):
    """A part of a grid: each of these corruptions at each of these severities."""

    model_config = STRICT
    corruptions: Corruptions
    severities: Severities

    @property
    def all(self) -> list[tuple[str, int]]:
        """Every (corruption, severity)."""
        return [(name, severity) for name in self.corruptions for severity in self.severities]
