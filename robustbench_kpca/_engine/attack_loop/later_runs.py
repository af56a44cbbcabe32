"""Begin later runs of a sample before their turn, where rows would be empty otherwise; the outcome stays the same.

An attack whose runs need nothing of each other (`types.SeparateRuns`), such as one run for each target class, has them
one after the other. A run begun early waits, once it is over, until those before it are. If one of those breaks the
sample, the run is dropped, and its passes are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool
from torch import Tensor

from robustbench_kpca._engine.attack_loop.pool import Pool, Run, Sample
from robustbench_kpca._engine.attack_loop.query import COUNTS
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Mask, SeparateRuns, State


@dataclass(frozen=True)
class LaterRuns:
    """The runs of a pool that were begun before their turn (`Pool.later`)."""

    pool: Pool
    threat: Threat

    def begin(self, free: int) -> None:
        """Begin at most `free` runs, the ones whose turn is next first."""
        pool, attack = self.pool, cast("SeparateRuns", self.pool.attack)
        now, ends = pool.state["run"].tolist(), attack.runs_of(pool.state).tolist()
        possible = [
            (number - now[row], row, number)
            for row, entry in enumerate(pool.active)
            if isinstance(entry, Sample)
            for number in range(now[row] + 1, ends[row])
            if number not in self.pool.later.get(entry.index, {})
        ]
        if not possible:
            pool.all_begun = all(end > 0 for end in ends)  # before that, the number of runs is not known
            return
        chosen = sorted(possible)[:free]
        device = pool.state["run"].device
        rows, numbers = (_on(device, indices) for indices in zip(*(indices for _, *indices in chosen), strict=True))
        state = {key: values.index_select(0, rows) for key, values in pool.state.items()}
        state = attack.begin_run(state, self.threat, numbers)
        runs = [Run(cast("Sample", pool.active[row]), number) for _, row, number in chosen]
        for run in runs:
            self.pool.later.setdefault(run.sample.index, {})[run.number] = run
        pool.append(runs, state | {"loop.margin": torch.full_like(state["loop.margin"], torch.inf)})

    def drop(self) -> None:
        """Drop every run, and begin none any more."""
        self.pool.one_by_one = self.pool.all_begun = True
        self.pool.later.clear()
        self.pool.keep([row for row, entry in enumerate(self.pool.active) if isinstance(entry, Sample)])

    def settle(self, before: State, stopped: Mask) -> Bool[Tensor, " kept"]:
        """Put aside the runs that are over, and let samples go on with theirs; return `stopped` of the rows that stay.

        Args:
            before: the state before the step.
            stopped: rows that look broken, if that ends the search.
        """
        pool = self.pool
        ended = stopped | pool.state["finished"] | (pool.state["run"] != before["run"])
        if not bool(ended.any()):
            return stopped
        pool.book()
        at = {id(entry): row for row, entry in enumerate(pool.active)}
        leaving: set[int] = set()
        ended_rows = ended.nonzero()[:, 0].tolist()
        for row in ended_rows:
            run = pool.active[row]
            if isinstance(run, Run):
                run.state, run.broken = _row(pool.state, row), bool(stopped[row])
                leaving.add(row)
        changed: dict[int, tuple[State, bool]] = {}
        for row in ended_rows:
            sample = pool.active[row]
            if isinstance(sample, Sample):
                to, state, broken = self._go_on(sample, _row(pool.state, row), bool(stopped[row]), at)
                if to is not None:
                    leaving.add(row)
                    pool.active[to] = sample
                else:
                    to = row
                changed[to] = state, broken
                if broken or bool(state["finished"]):
                    later_runs = self.pool.later.pop(sample.index, {}).values()
                    leaving |= {at[id(run)] for run in later_runs if run.state is None}
        pool.state = _with_rows(pool.state, {row: state for row, (state, _) in changed.items()})
        stopped = stopped.clone()
        for row, (_, broken) in changed.items():
            stopped[row] = broken
        stay = [row for row in range(len(stopped)) if row not in leaving]
        pool.keep(stay)
        return stopped.index_select(0, _on(stopped.device, stay))

    def _go_on(self, sample: Sample, state: State, broken: bool, at: dict[int, int]) -> tuple[int | None, State, bool]:
        """Follow a sample through the runs that were begun for it.

        Returns the row of the run that it goes on with, if that is not over; its state; and whether it looks broken.
        """
        runs = self.pool.later.get(sample.index, {})
        while not broken and not bool(state["finished"]):
            run = runs.pop(int(state["run"]), None)
            if run is None:
                break
            later = run.state or _row(self.pool.state, at[id(run)])
            state = self._joined(state, later, broken=run.broken)
            for count in COUNTS:
                setattr(sample, count, getattr(sample, count) + getattr(run, count))
            if run.state is None:
                return at[id(run)], state, False
            broken = run.broken
        return None, state, broken

    def _joined(self, earlier: State, later: State, *, broken: bool) -> State:
        """Return the state of a later run, with what the sample's earlier runs found."""
        lower = broken or bool(later["loop.margin"] < earlier["loop.margin"])
        better = later if lower else earlier
        joined = cast("SeparateRuns", self.pool.attack).join_runs(earlier, later, self.threat)
        return joined | {key: rows for key, rows in better.items() if key.startswith("loop.")}


def _on(device: torch.device, numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


def _row(state: State, row: int) -> State:
    return {key: values[row : row + 1].clone() for key, values in state.items()}


def _with_rows(state: State, new: dict[int, State]) -> State:
    if not new:
        return state
    rows = _on(state["run"].device, list(new))
    replaced = {key: torch.cat([row[key] for row in new.values()]) for key in state}
    return {key: values.index_copy(0, rows, replaced[key]) for key, values in state.items()}
