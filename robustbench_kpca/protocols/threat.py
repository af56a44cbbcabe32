"""The threat model: norm and eps of the perturbation; numbers such as "8/255" and "0.25 eps" are parsed here."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from robustbench_kpca._core.errors import BadInputError

BallNorm = Literal["linf", "l2", "l1"]
Norm = Literal["linf", "l2", "l1", "words"]
"""How large a perturbation is: a norm of the change, or the number of places with another word."""
SMALLEST = 1e-8
"""The smallest eps: near 1, single precision has steps of 6e-8, so that a smaller ball holds one image only."""
_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+"
_FRACTION = re.compile(rf"\s*({_NUMBER})\s*(?:/\s*({_NUMBER}))?\s*")
_RELATIVE = re.compile(rf"\s*({_NUMBER})\s*(?:/\s*({_NUMBER}))?\s*(?:\*\s*)?eps\s*")


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


def parse_step(text: str | float, eps: float) -> float:
    """Convert a step size to a float: absolute (`"2/255"`) or relative to eps (`"0.25 eps"`)."""
    match = _RELATIVE.fullmatch(str(text))
    if match is None:
        return parse_fraction(text)
    return parse_fraction(match[1] if match[2] is None else f"{match[1]}/{match[2]}") * eps


def _positive(text: str | float) -> str | float:
    if parse_step(text, eps=1.0) <= 0:
        raise BadInputError(f"step_size = {text}", expected="more than 0")
    return text


StepSize = Annotated[str | float, AfterValidator(_positive)]
"""Absolute (`"2/255"`) or relative to eps (`"0.25 eps"`), and not 0; see `parse_step`."""


@dataclass(frozen=True)
class Threat:
    """The allowed inputs: all x' with ||x' - x||_norm <= eps and, with `clip`, x' in [0, 1]^d.

    `eps` has the units of the images that the attack gets: pixel space is [0, 1], so write 8/255, not 8. Of words, it
    is the share of them that may be replaced (`swaps`). Attacks get a class `y` per sample: the label, to move away
    from, or if `targeted` the class to reach.
    """

    norm: Norm
    eps: float
    clip: bool = True
    targeted: bool = False

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2", "l1", "words"):
            raise BadInputError(f"norm '{self.norm}'", expected="'linf', 'l2', 'l1' or 'words'")
        if not SMALLEST <= self.eps < float("inf"):
            raise BadInputError(f"eps = {self.eps:g}", expected=f"a number such as 8/255, at least {SMALLEST:g}")
        if self.norm == "linf" and self.eps > 1 and self.clip:
            raise BadInputError(
                f"eps = {self.eps:g} in L-infinity, but pixel values are in [0, 1]",
                expected="eps <= 1",
                fix=f"write {self.eps:g}/255 if pixel levels were meant",
            )
        if self.norm == "words" and self.eps > 1:
            raise BadInputError(f"eps = {self.eps:g} of words", expected="a share of them, such as 0.015; at most 1")

    def swaps(self, words: int) -> int:
        """Return how many of so many words may be replaced: max(1, floor(eps * words))."""
        return max(1, math.floor(self.eps * words + 1e-9))  # 0.29 * 100 is 28.999999999999996

    @property
    def sign(self) -> int:
        """1, or -1 if targeted. The attacker increases sign * loss(y) and decreases sign * margin(y)."""
        return -1 if self.targeted else 1

    def __str__(self) -> str:
        """Write eps as a fraction of 255 if it is one, except in L1: `linf 8/255`, but `l1 12` and `1.5 % of words`."""
        if self.norm == "words":
            return f"{100 * self.eps:g} % of words"
        return f"{self.norm} {f'{self.eps:g}' if self.norm == 'l1' else spell_eps(self.eps)}"


def spell_eps(eps: float) -> str:
    """Write eps as a fraction of 255 if it is one, and at most 1: `8/255`, but `1.5` and `0.03`."""
    levels = eps * 255
    return f"{round(levels)}/255" if eps <= 1 and abs(levels - round(levels)) < 1e-6 else f"{eps:g}"
