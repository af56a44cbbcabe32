"""Foretell how long a cascade of attacks will still take; it learns from what broke so far, and from the clock.

A sample that breaks leaves, and its passes are no longer possible. So the time left is not what is left of the budget:
it is what samples are expected to spend. For every stage the survival of samples over the share of the stage's budget
is estimated as by Kaplan & Meier (1958, JASA 53): with d samples of n broken in a part of the budget that n entered,
the survival falls by the factor 1 − d / n. Samples still under attack count as long as they have been seen (they are
censored). Where a stage has not been reached, a prior of one sample stands.

Batches are full while samples wait; a smaller batch costs as much as a full one. So a stage takes at least as long as
its longest sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

BINS = 20
PRIOR_SAMPLES, PRIOR_BREAKS = 1.0, 0.01  # at every twentieth of a budget: one sample was seen, and a hundredth broke
BACKWARD = 2.0  # a backward pass costs about two forward passes
ACCEPTED = 0.05  # share of proposals that are kept, for attacks whose next proposals are shown ahead


@dataclass(frozen=True)
class StageCost:
    """What a stage can cost a sample, restarts included.

    Attributes:
        forwards: most forward passes.
        backwards: most backward passes.
        lanes: how many rows of a batch one sample can use at once: 1, or the runs that can be begun before their turn.
        foreseen: whether free rows show the next proposals of a sample.

    """

    forwards: int
    backwards: int
    lanes: int = 1
    foreseen: bool = False

    @property
    def passes(self) -> int:
        """Most passes of a sample."""
        return self.forwards + self.backwards

    @property
    def work(self) -> float:
        """The same, in units of a forward pass."""
        return self.forwards + BACKWARD * self.backwards


@dataclass
class Seen:
    """What was seen of a stage.

    Attributes:
        broken: samples broken in each part of the budget.
        stood: samples that stood to the end.
        seconds: that its steps took.
        steps: number of its steps.
        rows: samples in these steps, added up.
        before: work that was done before this run was resumed.

    """

    broken: list[int] = field(default_factory=lambda: [0] * BINS)
    stood: int = 0
    seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    before: float = 0.0


class Forecast:
    """Learns from a run, and foretells its rest.

    Args:
        stages: the cascade.
        batch: rows of a batch.
        stops: whether a broken sample leaves.

    """

    def __init__(self, stages: Sequence[StageCost], batch: int, *, stops: bool) -> None:
        self.stages, self.batch, self.stops = list(stages), batch, stops
        self.seen = [Seen() for _ in stages]
        self.entering = self.beside = 0.0
        self.entered = self.wrong = 0

    def finished(self, stage: int, share: float, *, broken: bool) -> None:
        """Take note of a sample that was attacked: broken at a share of this stage's budget, or standing after it."""
        for earlier in self.seen[:stage]:
            earlier.stood += 1
        if broken and self.stops:
            self.seen[stage].broken[_bin(share)] += 1
        else:
            self.seen[stage].stood += 1

    def resumed(self, active: Sequence[tuple[int, float]]) -> None:
        """Take note of samples that an earlier run began: what they have spent took no time today."""
        for number, seen in enumerate(self.seen):
            seen.before = self._work(number, active)

    def took(self, stage: int, seconds: float, rows: int) -> None:
        """Take note of a step of a stage: how long it took, and how many samples were in it."""
        seen = self.seen[stage]
        seen.seconds, seen.steps, seen.rows = seen.seconds + seconds, seen.steps + 1, seen.rows + rows

    def seconds(self, active: Sequence[tuple[int, float]], outside: int) -> float | None:
        """Return the seconds left; None before any batch of an attack.

        Args:
            active: of every unfinished sample, its stage and the share of that stage's budget that it has spent.
            outside: number of samples that have not been shown to the model.

        """
        pace = self._pace(active)
        if pace is None:
            return None
        arriving = outside * (self.entered - self.wrong + 1) / (self.entered + 1)
        total = outside * self.entering / max(self.entered, 1)
        by_stage: list[list[float]] = [[] for _ in self.stages]
        for at, share in active:
            by_stage[at].append(share)
        for number, (stage, shares) in enumerate(zip(self.stages, by_stage, strict=True)):
            alive = self._survival(number, active)
            rest = [_rest(alive, share) for share in shares]
            work = stage.work * (sum(spent for spent, _ in rest) + arriving * _rest(alive, 0.0)[0])
            stand = sum(stands for _, stands in rest) + arriving * _rest(alive, 0.0)[1]
            longest = stage.work * max([min(arriving, 1.0), *(1 - share for share in shares)])
            total += pace[number] * self._rows(stage, work, longest, len(shares) + arriving)
            arriving = stand
        known = self.entering + sum(seen.seconds for seen in self.seen)
        return total * (1 + self.beside / known if known else 1.0)

    def _rows(self, stage: StageCost, work: float, longest: float, samples: float) -> float:
        """Return the rows of batches that this work fills, times the work of a row, empty rows included.

        While more samples than rows are left, batches are full; the last ones take as long as the slowest of them. A
        sample that can use several rows at once leaves fewer of them empty.
        """
        if samples <= 0 or work <= 0:
            return 0.0
        alone = longest * self.batch / self._lanes(stage, self.batch) * min(1.0, samples)
        if samples > self.batch:
            return max(work + alone / 2, alone)
        filled = samples / self.batch * self._lanes(stage, self.batch / max(samples, 1.0))
        return max(work / min(filled, 1.0), alone)

    def _lanes(self, stage: StageCost, rows: float) -> float:
        """Return how many times as fast a sample goes on with so many rows."""
        if stage.foreseen:  # the expected number of proposals up to the first one that is kept
            return float((1 - (1 - ACCEPTED) ** rows) / ACCEPTED)
        return min(float(stage.lanes), rows)

    def _pace(self, active: Sequence[tuple[int, float]]) -> list[float] | None:
        """Return seconds per forward pass of a row: each stage's own, or that of all stages where it is not known."""
        capacity = [self._capacity(number, active) for number in range(len(self.stages))]
        if not sum(capacity):
            return None
        usual = sum(seen.seconds for seen in self.seen) / sum(capacity)
        return [seen.seconds / most if most else usual for seen, most in zip(self.seen, capacity, strict=True)]

    def _capacity(self, stage: int, active: Sequence[tuple[int, float]]) -> float:
        """Return the work of all rows of a stage's batches, empty ones included."""
        seen = self.seen[stage]
        if not seen.rows:
            return 0.0
        each = 1.0 if self.stages[stage].foreseen else (self._work(stage, active) - seen.before) / seen.rows
        return each * self.batch * seen.steps

    def _work(self, stage: int, active: Sequence[tuple[int, float]]) -> float:
        """Return the work that was done in a stage."""
        seen = self.seen[stage]
        whole = seen.stood + sum(where > stage for where, _ in active)
        part = sum(count * (part + 0.5) / BINS for part, count in enumerate(seen.broken))
        return self.stages[stage].work * (whole + part + sum(share for where, share in active if where == stage))

    def _survival(self, stage: int, active: Sequence[tuple[int, float]]) -> list[float]:
        """Return the share of samples that stand before each part of the budget, and after the last."""
        seen, alive = self.seen[stage], [1.0]
        later = sum(where > stage for where, _ in active)
        here = [_bin(share) for where, share in active if where == stage]
        for part in range(BINS):
            at_risk = seen.stood + later + sum(seen.broken[part:]) + sum(one >= part for one in here)
            prior = PRIOR_BREAKS if self.stops else 0.0
            alive.append(alive[-1] * (1 - (seen.broken[part] + prior) / (at_risk + PRIOR_SAMPLES)))
        return alive


def _bin(share: float) -> int:
    return min(int(share * BINS), BINS - 1)


def _rest(alive: Sequence[float], share: float) -> tuple[float, float]:
    """Return what a sample that stands at this share will still spend, and the probability that it stands to the end.

    The first is a share of the budget: the area below the survival from here on, relative to the survival here.
    """
    part = _bin(share)
    here = alive[part]
    within = max((part + 1) / BINS - share, 0.0)
    return within + sum(alive[part + 1 : BINS]) / here / BINS, alive[BINS] / here
