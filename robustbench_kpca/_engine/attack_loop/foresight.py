"""Show the next proposals of a sample in one batch, where rows would be empty otherwise; the outcome stays the same.

An attack that mostly rejects its proposals (`types.Foreseen`) can say what it would propose next if none were kept.
Those proposals are shown together. A sample then goes on from the first that was kept, or from the last one; what was
shown beyond it is dropped, and not counted.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor

from robustbench_kpca._engine.attack_loop.query import Tally
from robustbench_kpca.attacks.shared.rows import choose, none
from robustbench_kpca.types import Labels, Mask, State

Rows: TypeAlias = Int64[Tensor, " sample"]
WORST = ("loop.worst", "loop.margin", "loop.prediction", "loop.rank")
Spread: TypeAlias = dict[str, tuple[Tensor, Tensor]]
"""Name -> an entry of the samples' states, and the same for every row."""


@dataclass(frozen=True)
class Layout:
    """Which sample every row shows, and how many steps ahead of it; the rows of a sample lie together."""

    sample: Labels
    ahead: Labels
    first: Rows

    @staticmethod
    @lru_cache(maxsize=8)
    def even(samples: int, rows: int, device: torch.device) -> "Layout":
        """Give every sample the same number of rows; the first ones get one more if some are left over."""
        each, more = divmod(rows, samples)
        count = each + (torch.arange(samples, device=device) < more).long()
        sample = torch.arange(samples, device=device).repeat_interleave(count, output_size=rows)
        first = count.cumsum(0) - count
        return Layout(sample, torch.arange(rows, device=device) - first[sample], first)

    def spread(self, state: State, copies: Spread) -> State:
        """Return every row's sample state; the images of lowest margin are not copied, but left to be written.

        `copies` holds what was copied in the last step, and is replaced. What has not changed since, such as the clean
        images, is not copied again.
        """
        copied: State = {}
        for key, values in state.items():
            source, rows = copies.get(key, (None, values))
            same = source is values and len(rows) == len(self.sample)
            if key != "loop.worst":
                copied[key] = rows if same else values.index_select(0, self.sample)
        copies.clear()
        copies |= {key: (state[key], rows) for key, rows in copied.items() if key not in WORST}
        return copied | {"loop.worst": torch.empty_like(copied["loop.clean"])}

    def last(self, over: Mask) -> Rows:
        """Return the last row of every sample that counts: its first one that is `over`, else its last."""
        rows = torch.arange(len(over), device=over.device)
        end = torch.cat([self.first[1:], rows.new_tensor([len(over)])]) - 1
        return end.scatter_reduce(0, self.sample, torch.where(over, rows, len(over)), "amin")

    def fold(
        self, before: State, copies: Spread, after: State, tally: Tally, over: Mask, *, stops: bool
    ) -> tuple[State, Tally]:
        """Return one row per sample: its state after its last row that counts, and what its rows up to there spent.

        Args:
            before: the samples' states, one row each.
            copies: what `spread` copied of them; entries that no step changed stay those of `before`.
            after: the states after the step of `spread`.
            tally: passes of that step.
            over: rows beyond which nothing is known.
            stops: whether a broken image replaces the one of lowest margin.
        """
        last = self.last(over)
        counts = torch.arange(len(over), device=over.device) <= last[self.sample]
        of_attack = {
            key: before[key] if key in copies and copies[key][1] is values else values.index_select(0, last)
            for key, values in after.items()
            if not key.startswith("loop.")
        }
        best = self._lowest(torch.where(counts, after["loop.margin"], torch.inf))
        best = torch.where(tally.broken[last] & stops, last, best)
        better = (after["loop.margin"][best] < before["loop.margin"]) | (tally.broken[last] & stops)
        of_loop = {key: values for key, values in before.items() if key.startswith("loop.")}
        if not none(better):
            of_loop |= {key: choose(better, after[key].index_select(0, best), before[key]) for key in WORST}
        return of_attack | of_loop, tally.summed(self.sample, counts, len(last))

    def _lowest(self, margins: Tensor) -> Rows:
        rows = torch.arange(len(margins), device=margins.device)
        least = margins.new_full(self.first.shape, torch.inf).scatter_reduce(0, self.sample, margins, "amin")
        candidates = torch.where(margins == least[self.sample], rows, len(margins) - 1)
        return torch.full_like(self.first, len(margins) - 1).scatter_reduce(0, self.sample, candidates, "amin")
