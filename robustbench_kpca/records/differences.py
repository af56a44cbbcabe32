"""Compare two outcomes tables row by row, and say how likely a few rows betray forged ones."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustbench_kpca.records.outcomes import Outcomes

ROUNDING = 1e-4
"""Where machines or versions differ, numbers may differ by this, relative to the larger one or to 1.

Text and whole numbers must agree all the same, but for `PIXELS`. A search follows its own rounding. So of a sample
under attack only the label, the answer before the attack, and whether it was broken are then compared, of a scene the
clean picture, and of a text its loss before the attack.
"""
PIXELS = 4
"""Pixels of a picture that may have changed class there, because their two best logits are equal up to rounding.

Measured with two processors on 64 pictures of 4,096 pixels in 76 cells: at most 2.
"""
_COUNTED = ("intersection", "predicted")
_SEARCHED = ("label", "clean_prediction", "broken_by", "words", "clean_nll")
_KEY = ("sample", "corruption", "severity", "picture", "class", "position")


@dataclass(frozen=True)
class Difference:
    """A row that differs: its sample (with the cell, if there are several) and column -> (was, is)."""

    row: str
    values: dict[str, tuple[Any, Any]]

    def __str__(self) -> str:
        changes = ", ".join(f"{name} {_short(was)} is now {_short(now)}" for name, (was, now) in self.values.items())
        return f"{self.row}: {changes}"


def differences(before: Outcomes, after: Outcomes, *, exact: bool) -> list[Difference]:
    """Return the rows that differ between two tables of the same samples, or that only one of them has.

    Args:
        before: the outcomes of a record.
        after: what was found now.
        exact: whether all columns must be equal; otherwise as `ROUNDING` says.
    """
    searched = before.kind == "attack" and not exact
    names = [name for name in before.columns if not searched or "picture" in before.columns or name in _SEARCHED]
    old, new = (_by_key(outcomes, clean_only=searched) for outcomes in (before, after))
    rows = []
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in old or key not in new:
            row = old[key] if key in old else new[key]
            if not exact and row.get("truth") == 0 and row["predicted"] <= PIXELS:
                continue
            values: dict[str, tuple[Any, Any]] = {"row": ("there", "missing") if key in old else ("missing", "there")}
        else:
            pairs = {name: (old[key][name], new[key][name]) for name in names}
            values = {name: pair for name, pair in pairs.items() if not _same(name, *pair, exact=exact)}
        if values:
            rows.append(Difference(" ".join(map(str, key)), values))
    return rows


def only(outcomes: Outcomes, samples: Collection[str]) -> Outcomes:
    """Return the rows of these samples."""
    return outcomes.where(np.isin(outcomes["sample"].astype(str), list(samples)))


def chance_of_finding(forged: int, total: int, looked_at: int) -> float:
    """Return the probability that a random choice holds at least one forged sample.

    Hypergeometric: 1 − C(total − forged, looked_at) / C(total, looked_at).
    """
    return 1 - math.comb(total - forged, looked_at) / math.comb(total, looked_at)


def _by_key(outcomes: Outcomes, *, clean_only: bool) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows by what names them; with `clean_only`, without pictures that an attack found."""
    rows = [row for row in outcomes.rows() if not (clean_only and row.get("picture"))]
    return {tuple(row[name] for name in _KEY if name in row): row for row in rows}


def _same(name: str, was: Any, now: Any, *, exact: bool) -> bool:
    if was == now or (was != was and now != now):
        return True
    if exact:
        return False
    if name == "broken_by":
        return bool(was) == bool(now)
    if name in _COUNTED:
        return bool(abs(was - now) <= PIXELS)
    if isinstance(now, float) and isinstance(was, float):
        largest = max(abs(was), abs(now))
        return largest < math.inf and abs(was - now) <= ROUNDING * max(1.0, largest)  # infinite: equal to itself only
    return False


def _short(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else repr(value) if value == "" else str(value)
