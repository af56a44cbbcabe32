"""Perplexity of language models: clean, under corruption, and under attack.

With nll_i = -log p(word i | words before it), in nats, over the positions i of a text:

    perplexity = exp(mean_i nll_i)                                                    1 at best; lower is better

Words of one article depend on each other, so intervals and tests resample articles with all their words (a block
bootstrap; Künsch 1989, "The jackknife and the bootstrap for general stationary observations"). Where there is one
article only, they resample the blocks of the text. A difference of two models is tested on the same articles in every
resample. exp is increasing, so that test is the one of the difference of their mean nll.

Under corruption the swapped stream is read and predicted, as in the code of Teo & Nguyen (2024), arXiv:2406.13762; so
there are three numbers: of all positions, as published; of those whose own word is unchanged; and of the swapped ones.
Each is computed in every cell of the grid, then averaged over severities, and then over corruptions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PLAIN, Statistic, Weighted
from robustbench_kpca.metrics.shared.bootstrap import Weights
from robustbench_kpca.metrics.shared.metric import has_clean
from robustbench_kpca.metrics.shared.pixels import shares
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.estimate import Values
from robustbench_kpca.records.outcomes import Outcomes

Cell = tuple[str, int]


@dataclass(frozen=True)
class Losses:
    """Sums over the words of each unit that is resampled: an article or, where there is one article, a block.

    names: names of the units, with their words: two models can be compared where these are the same.
    sums: sums of -log p in nats, shape (cells, units).
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
        """Whether enough units of every cell have words, so that no resample is without one."""
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


_LARGEST = np.log(np.finfo(np.float64).max)
Rows = Callable[[Outcomes], NDArray[np.bool_]]
"""Which positions count."""


def _perplexity(outcomes: Outcomes) -> Weighted:
    """Return the perplexity of the words as they are."""
    clean = outcomes.where(outcomes["severity"] == 0)
    return _weighted(Losses.of(clean), _exp)


def _corrupted(rows: Rows, outcomes: Outcomes) -> Weighted:
    """Return the mean over severities, then over corruptions, of the perplexity of some positions."""
    chosen = outcomes.where(rows(outcomes) & (outcomes["severity"] > 0))
    cells = cells_in(chosen)
    share, losses = shares(tuple(cells)), Losses.of(chosen, cells)
    return _weighted(losses, lambda means: _exp(means) @ share)


def _attacked(column: str, outcomes: Outcomes) -> Weighted:
    return _weighted(Losses.of_blocks(outcomes, column), _exp)


def _ratio(outcomes: Outcomes) -> Weighted:
    before, after = (Losses.of_blocks(outcomes, column) for column in ("clean_nll", "nll"))
    return _weighted(after.minus(before), _exp)


def _exp(means: Values) -> Values:
    if means.max() > _LARGEST:
        raise BadInputError(
            f"a mean loss of {means.max():.0f} nats a word, whose exp is no number",
            expected=f"at most {_LARGEST:.0f}: the model has diverged",
            fix="train it again",
        )
    return np.asarray(np.exp(means))


def _weighted(losses: Losses, of: Callable[[Values], Values]) -> Weighted:
    """Prepare a function of the mean losses of every cell, shape (..., cells), for the bootstrap."""

    def many(weights: Weights) -> Values:
        return np.asarray(of(losses.means(weights))).reshape(len(weights))

    def once(weights: Weights | None) -> float:
        return float(many(np.ones((1, len(losses.names)), np.int64) if weights is None else weights[None])[0])

    return Weighted(losses.names, once, many=many)


def _every(outcomes: Outcomes) -> NDArray[np.bool_]:
    return np.ones(len(outcomes), bool)


def _unchanged(outcomes: Outcomes) -> NDArray[np.bool_]:
    return np.asarray(outcomes["swapped"] == 0)


def _swapped(outcomes: Outcomes) -> NDArray[np.bool_]:
    return np.asarray(outcomes["swapped"] == 1)


def _in_every_cell(rows: Rows, outcomes: Outcomes, scenario: Scenario) -> bool:  # noqa: ARG001
    """Whether every cell of the grid has such a position, and so many articles that no resample is without one."""
    chosen = outcomes.where(rows(outcomes) & (outcomes["severity"] > 0))
    cells = cells_in(outcomes.where(outcomes["severity"] > 0))
    return bool(cells) and len(chosen) > 0 and Losses.of(chosen, cells).everywhere


_language: Any = partial(Statistic, task="language", unit=PLAIN, lower_is_better=True)


def _under_corruption(rows: Rows, **how: Any) -> Statistic:
    metric: Statistic = _language(
        kinds=("corruption",), weighted=partial(_corrupted, rows), applies=partial(_in_every_cell, rows), **how
    )
    return metric


METRICS = (
    _language(
        name="perplexity",
        title="Perplexity",
        what="Perplexity: exp of the mean -log p of a word given the words before it, of the text as it is.",
        kinds=("clean", "corruption"),
        weighted=_perplexity,
        applies=has_clean,
    ),
    _under_corruption(
        _every,
        name="corrupted_perplexity",
        title="Perplexity under corruption",
        what="Perplexity under corruption, of all words, swapped ones too, as in published numbers.",
    ),
    _under_corruption(
        _unchanged,
        name="clean_target_perplexity",
        title="Perplexity of unchanged words",
        what="Perplexity under corruption of the words that are unchanged: what the swapped words before them cost.",
    ),
    _under_corruption(
        _swapped,
        name="swapped_perplexity",
        title="Perplexity of swapped words",
        what="Perplexity under corruption of the swapped words: how probable the model finds what was put there.",
    ),
    _language(
        name="clean_block_perplexity",
        title="Perplexity before the attack",
        what="Perplexity of blocks before an attack: each read after the block before it, so from fewer words.",
        kinds=("attack",),
        weighted=partial(_attacked, "clean_nll"),
    ),
    _language(
        name="attacked_perplexity",
        title="Perplexity under attack",
        what="Perplexity under attack: of the clean next words, read after the words that the attack chose.",
        kinds=("attack",),
        weighted=partial(_attacked, "nll"),
        unattacked="clean_block_perplexity",
    ),
    _language(
        name="perplexity_ratio",
        title="Perplexity, attacked / clean",
        what="Perplexity under attack as a multiple of that of the same blocks without it; 1: nothing lost.",
        kinds=("attack",),
        weighted=_ratio,
    ),
)
