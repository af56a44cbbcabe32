"""An epsilon belongs to a norm, lives in the pixel space [0, 1], and is parsed once."""

import re
from dataclasses import dataclass
from typing import Literal

from robustbench_kpca.errors import BadInputError

Norm = Literal["linf", "l2", "l1"]
_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+"
_FRACTION = re.compile(rf"\s*({_NUMBER})\s*(?:/\s*({_NUMBER}))?\s*")
_RELATIVE = re.compile(rf"\s*({_NUMBER})\s*(?:/\s*({_NUMBER}))?\s*(?:\*\s*)?eps\s*")


def parse_fraction(text: str | float) -> float:
    """Turn `"8/255"`, `"0.03"` or a number into a float.

    Raises:
        BadInputError: not a non-negative finite number or fraction.

    """
    match = _FRACTION.fullmatch(str(text))
    if match is None or (match[2] is not None and float(match[2]) == 0):
        raise BadInputError(f"'{text}' is not a number", expected="a number or a fraction such as 8/255")
    value = float(match[1]) / float(match[2] or 1)
    if value == float("inf"):
        raise BadInputError(f"'{text}' is not finite", expected="a number or a fraction such as 8/255")
    return value


def parse_step(text: str | float, eps: float) -> float:
    """Resolve a step size: absolute (`"2/255"`) or relative to the budget (`"0.25 eps"`)."""
    match = _RELATIVE.fullmatch(str(text))
    if match is None:
        return parse_fraction(text)
    return parse_fraction(match[1] if match[2] is None else f"{match[1]}/{match[2]}") * eps


def require_step(text: str | float) -> None:
    """Refuse a step size that leads nowhere or cannot be read."""
    if parse_step(text, eps=1.0) <= 0:
        raise BadInputError(f"step_size = {text}", expected="more than 0")


@dataclass(frozen=True)
class Threat:
    """All x' with ||x' - x||_norm <= eps and, with `clip`, x' in [0, 1]^d; and what the attacker wants there.

    `eps` is in the units of the images that the attack is given: in pixel space those of [0, 1], so 8/255, not 8.
    Attacks are given a class `y` per sample: the label, to get away from, or if `targeted` the class to be reached.
    """

    norm: Norm
    eps: float
    clip: bool = True
    targeted: bool = False

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2", "l1"):
            raise BadInputError(f"norm '{self.norm}'", expected="'linf', 'l2' or 'l1'")
        if not 0 < self.eps < float("inf"):
            raise BadInputError(f"eps = {self.eps:g}", expected="a positive number such as 8/255")
        if self.norm == "linf" and self.eps > 1 and self.clip:
            raise BadInputError(
                f"eps = {self.eps:g} in L-infinity, while images live in [0, 1]",
                expected="eps <= 1",
                fix=f"write {self.eps:g}/255 if pixel levels were meant",
            )

    @property
    def sign(self) -> int:
        """Turn a loss that grows away from `y` into what the attacker increases, and a margin into what they lower."""
        return -1 if self.targeted else 1

    def __str__(self) -> str:
        """Spell the budget in pixel levels where that is exact enough to read: `linf 8/255`, but `l1 12`."""
        levels = self.eps * 255
        near = self.norm != "l1" and self.eps <= 1 and abs(levels - round(levels)) < 1e-6
        return f"{self.norm} {round(levels)}/255" if near else f"{self.norm} {self.eps:g}"
