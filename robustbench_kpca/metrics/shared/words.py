"""Losses of words, summed by article: what perplexities and their intervals are computed from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics.shared.bootstrap import Weights
from robustbench_kpca.records.estimate import Values
from robustbench_kpca.records.outcomes import Outcomes

Cell = tuple[str, int]


@dataclass(frozen=True)
class Losses:
    """Sums over the words of each unit that is resampled: an article or, where there is one article, a block.

    names: of the units, with their words: two models can be compared where these are the same.
    sums: of -log p in nats, shape (cells, units).
    counts: number of words, shape (cells, units).
    """

    names: NDArray[np.object_]
    sums: Values
    counts: Values

    @classmethod
    def of(cls, outcomes: Outcomes, cells: "Sequence[Cell]" = ()) -> "Losses":
        """Sum the rows of positions by cell; without `cells` all rows are of one.

        Raises:
            BadInputError: no rows.

        """
        which = np.zeros(len(outcomes), np.int64)
        for number, (name, severity) in enumerate(cells):
            which[(outcomes["corruption"] == name) & (outcomes["severity"] == severity)] = number
        ones = np.ones(len(outcomes))
        return cls._sum(outcomes, which, max(1, len(cells)), outcomes["nll"], words=ones, place=outcomes["position"])

    @classmethod
    def of_blocks(cls, outcomes: Outcomes, column: str) -> "Losses":
        """Sum the rows of blocks, whose `column` is the mean over their words.

        Raises:
            BadInputError: no rows.

        """
        words = outcomes["words"].astype(float)
        once = np.zeros(len(outcomes), np.int64)
        return cls._sum(outcomes, once, 1, words * outcomes[column], words=words, place=outcomes["article"])

    @classmethod
    def _sum(
        cls, outcomes: Outcomes, cell: NDArray[np.int64], cells: int, losses: Values, words: Values, place: NDArray[Any]
    ) -> "Losses":
        if not len(outcomes):
            raise BadInputError("outcomes without a word", expected="at least one position")
        articles, unit = np.unique(outcomes["article"], return_inverse=True)
        names = articles.astype(str)
        if len(articles) == 1:
            names, unit = np.unique(outcomes["sample"].astype(str), return_inverse=True)
        at = cell * len(names) + unit
        sums: Values = np.bincount(at, losses, cells * len(names)).reshape(cells, -1).astype(np.float64)
        counts: Values = np.bincount(at, words, cells * len(names)).reshape(cells, -1).astype(np.float64)
        stamps = np.bincount(unit, place * words, len(names))  # other positions, another name
        parts = zip(names, counts.sum(0), stamps, strict=True)
        marked = [f"{name} {total:.0f} {stamp:.0f}" for name, total, stamp in parts]
        return cls(np.array(marked, dtype=object), sums, counts)

    @property
    def everywhere(self) -> bool:
        """Whether so many units of every cell have words that a resample without any is out of the question."""
        return bool(((self.counts > 0).sum(1) >= min(ENOUGH, len(self.names))).all())

    def minus(self, other: "Losses") -> "Losses":
        """Return the differences of the losses of the same words."""
        return replace(self, sums=self.sums - other.sums)

    def means(self, weights: Weights) -> Values:
        """Return the mean loss of a word in every cell, where each unit counts as often as its weight says.

        Args:
            weights: shape (resamples, units).

        Returns:
            Shape (resamples, cells).

        """
        times = weights.astype(np.float64)
        losses: Values = (times @ self.sums.T) / (times @ self.counts.T)
        return losses


ENOUGH = 20
"""Units with words: with fewer of them among many, a resample may have none, and the mean does not exist."""


def cells_in(outcomes: Outcomes) -> list[Cell]:
    """Return every (corruption, severity) that occurs, in order of appearance."""
    cells: dict[Cell, None] = {}
    names, levels = outcomes["corruption"], outcomes["severity"]
    changes = np.flatnonzero((names[1:] != names[:-1]) | (levels[1:] != levels[:-1])) + 1
    for at in [0, *changes.tolist()] if len(outcomes) else []:
        cells[str(names[at]), int(levels[at])] = None
    return list(cells)
