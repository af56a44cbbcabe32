"""How the value of a metric is written: pages, tables and messages ask the metric's unit."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """How values are written.

    name: in words, such as `percent`; empty where values have no unit.
    symbol: behind a value, such as `%`.
    points: behind a difference of two values, in rules of `rbk check`, such as `pp`.
    scale: a value is multiplied by this before it is written.
    digits: behind the decimal point; none from 1,000 on.
    full: the largest value that is possible, where there is one: the end of an axis, and of a bar in a table.
    """

    name: str = ""
    symbol: str = ""
    points: str = ""
    scale: float = 1
    digits: int = 2
    full: float | None = None

    def number(self, value: float) -> str:
        """Write a value without its symbol: `93.4`."""
        return f"{self.scale * value:.{self._digits(value)}f}"

    def text(self, value: float) -> str:
        """Write a value: `93.4 %`."""
        return f"{self.number(value)} {self.symbol}".rstrip()

    def interval(self, low: float, high: float) -> str:
        """Write an interval: `[90.9, 95.3]`; both ends with as many digits as the larger one."""
        digits = self._digits(max(low, high, key=abs))
        return f"[{self.scale * low:.{digits}f}, {self.scale * high:.{digits}f}]"

    def _digits(self, value: float) -> int:
        return self.digits if abs(self.scale * value) < 999.5 else 0

    def change(self, difference: float) -> str:
        """Write a difference with its sign: `-1.5`."""
        return f"{self.scale * difference:+.{self.digits}f}"

    def difference(self, value: float, other: float) -> str:
        """Write the difference of two values as they are written: of 39.7 and 39.5 it is `+0.2`."""
        return self.change(float(self.number(value)) / self.scale - float(self.number(other)) / self.scale)

    def gap(self, difference: float) -> str:
        """Write how far apart two values are: `1.5 points`, where values are percentages."""
        number = self.number(abs(difference))
        return f"{number} points" if self.points else number

    def label(self, what: str) -> str:
        """Name a quantity with its unit, for axes: `accuracy (%)`."""
        return f"{what} ({self.symbol})" if self.symbol else what

    def share(self, value: float) -> float:
        """Return how much of a bar in a table a value fills, in percent; 0 where there is no largest value."""
        return 0.0 if self.full is None else max(0, min(100, 100 * value / self.full))

    @property
    def ends(self) -> tuple[float, float | None]:
        """The ends of an axis; None: as far as the values go."""
        return 0, None if self.full is None else self.scale * self.full


PERCENT = Unit(name="percent", symbol="%", points="pp", scale=100, digits=1, full=1)
PLAIN = Unit()


def common_unit(units: Iterable[Unit]) -> Unit | None:
    """Return the unit that all have, or None where they differ (or there is none)."""
    different = set(units)
    return different.pop() if len(different) == 1 else None
