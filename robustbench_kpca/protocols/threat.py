"""The threat model: norm and eps of the perturbation; numbers such as "0.25 eps" are parsed here."""

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import NUMBER, parse_fraction

BallNorm = Literal["linf", "l2", "l1"]
Norm = Literal["linf", "l2", "l1", "words", "l0", "patches"]
"""How large a perturbation is: a norm of the change, the number of places with another word, of pixels or patches."""
COUNTED: tuple[Norm, ...] = ("l0", "patches")
"""Norms whose eps is a whole number: of pixels, or of square patches, whose values are free in [0, 1]."""
Corners: TypeAlias = Literal["grid", "anywhere"]
"""Where patches may lie: on the grid of their own side, or anywhere."""
SMALLEST = 1e-8
"""The smallest eps: near 1, single precision has steps of 6e-8, so that a smaller ball holds one image only."""
_RELATIVE = re.compile(rf"\s*({NUMBER})\s*(?:/\s*({NUMBER}))?\s*(?:\*\s*)?eps\s*")


def parse_step(text: str | float, eps: float) -> float:
    """Convert a step size to a float: absolute (`"2/255"`) or relative to eps (`"0.25 eps"`)."""
    match = _RELATIVE.fullmatch(str(text))
    if match is None:
        return parse_fraction(text)
    return parse_fraction(match[1] if match[2] is None else f"{match[1]}/{match[2]}") * eps


def is_relative(step: object) -> bool:
    """Tell whether a step size is a share of eps."""
    return isinstance(step, str) and _RELATIVE.fullmatch(step) is not None


def _positive(text: str | float) -> str | float:
    if parse_step(text, eps=1.0) <= 0:
        raise BadInputError(f"step_size = {text}", expected="more than 0")
    return text


StepSize = Annotated[str | float, AfterValidator(_positive)]
"""Absolute (`"2/255"`) or relative to eps (`"0.25 eps"`), and not 0; see `parse_step`."""


@dataclass(frozen=True)
class Threat:
    """The allowed inputs: all x' with ||x' - x||_norm <= eps and, with `clip`, x' in [0, 1]^d.

    `eps` has the units of the images that the attack gets: pixel space is [0, 1], so write 8/255, not 8. For words
    it is the share that may be replaced (`swaps`). Attacks get a class `y` per sample, to move away from.

    In `l0`, eps pixels may have any colour; with `patches`, eps squares may, of side `patch` where `corners` says.
    A `patch` of "token" is as large as a token of the model: `on_tokens` gives it a side.
    """

    norm: Norm
    eps: float
    clip: bool = True
    patch: int | Literal["token"] | None = None
    corners: Corners | None = None

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2", "l1", "words", *COUNTED):
            raise BadInputError(f"norm '{self.norm}'", expected="'linf', 'l2', 'l1', 'words', 'l0' or 'patches'")
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
        if self.norm in COUNTED and self.eps != max(1, round(self.eps)):
            what = "pixels" if self.norm == "l0" else "patches"
            raise BadInputError(f"eps = {self.eps:g} {what}", expected="a whole number of them, at least 1")
        if self.norm in COUNTED and not self.clip:
            raise BadInputError(f"norm = '{self.norm}' with clip = false", expected="clip = true: values in [0, 1]")
        self._check_patches()

    def _check_patches(self) -> None:
        stated = self.patch is not None, self.corners is not None
        if stated != ((self.norm == "patches"),) * 2:
            raise BadInputError(
                f"norm = '{self.norm}' with patch = {self.patch!r} and corners = {self.corners!r}",
                expected="both with norm = 'patches', such as patch = 4 and corners = 'grid'; neither without",
            )
        if isinstance(self.patch, int) and self.patch < 1:
            raise BadInputError(f"patch = {self.patch}", expected="the side in pixels, at least 1, or 'token'")

    @property
    def counted(self) -> bool:
        """Whether eps is a number of pixels or patches."""
        return self.norm in COUNTED

    @property
    def count(self) -> int:
        """How many pixels or patches may change."""
        return round(self.eps)

    @property
    def side(self) -> int:
        """Side of what is counted, in pixels."""
        if self.norm == "l0":
            return 1
        if not isinstance(self.patch, int):
            raise BadInputError(
                "patches of the size of a token for a model that does not state one",
                expected="a model with `patch_embed.patch_size`",
                fix="give the side in pixels, such as patch = 16",
            )
        return self.patch

    def on_tokens(self, side: int | None) -> "Threat":
        """Return the same with patches of this side, where they are as large as a token."""
        return replace(self, patch=side) if self.patch == "token" and side is not None else self

    def swaps(self, words: int) -> int:
        """Return how many of so many words may be replaced: max(1, floor(eps * words))."""
        return max(1, math.floor(self.eps * words + 1e-9))  # 0.29 * 100 is 28.999999999999996

    def __str__(self) -> str:
        """Write eps as a fraction of 255 if it is one, except in L1: `linf 8/255`, but `l1 12` and `1.5 % of words`."""
        if self.norm == "words":
            return f"{100 * self.eps:g} % of words"
        if self.norm == "l0":
            return _several(self.count, "pixel")
        if self.norm == "patches":
            size = "a token" if self.patch == "token" else f"{self.patch} x {self.patch} pixels"
            where = "on their grid" if self.corners == "grid" else "anywhere"
            return f"{_several(self.count, 'patch')} of {size} {where}"
        return f"{self.norm} {f'{self.eps:g}' if self.norm == 'l1' else spell_eps(self.eps)}"


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}{'es' if what.endswith('ch') else 's'}"


def spell_eps(eps: float) -> str:
    """Write eps as a fraction of 255 if it is one, and at most 1: `8/255`, but `1.5` and `0.03`."""
    levels = eps * 255
    return f"{round(levels)}/255" if eps <= 1 and abs(levels - round(levels)) < 1e-6 else f"{eps:g}"
