"""Foretell how long a cascade of attacks will still take.

A sample that breaks leaves, so the time left is not what is left of the budget: it is what samples are expected to
spend. Most break early. So the risk of a sample that has spent a share t of a stage's budget is taken to be
a / (t + `KNEE`). The likeliest a is the number of breaks over the sum of ln((t + `KNEE`) / `KNEE`) of all samples. One
sample and a fifth of a break are added, for stages that nobody has reached.

Batches are full while samples wait; a smaller batch takes as long as a full one. So a stage takes at least as long as
its longest sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

BACKWARD = 2.0  # a backward pass costs about two forward passes
KNEE = 0.3
PRIOR_BREAKS = 0.2
ACCEPTED = 0.05  # share of proposals that are kept, for attacks whose next proposals are shown ahead
Active = Sequence[tuple[int, float]]
"""Of every unfinished sample: its stage, and the share of that stage's budget that it has spent."""


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

    def faster(self, rows: float) -> float:
        """Return how many times as fast a sample goes on with so many rows."""
        if self.foreseen:  # the expected number of proposals up to the first one that is kept
            return float((1 - (1 - ACCEPTED) ** rows) / ACCEPTED)
        return min(float(self.lanes), rows)


@dataclass
class Seen:
    """What was seen of a stage: of samples that left it, and of its steps.

    Attributes:
        broken: samples that broke in it.
        spent: shares of its budget, added up.
        exposure: `_exposure` of these shares, added up.
        seconds: that its steps took.
        steps: number of its steps.
        rows: samples in these steps, added up.
        before: shares that were spent before this run was resumed.

    """

    broken: int = 0
    spent: float = 0.0
    exposure: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    before: float = 0.0

    def left(self, share: float, *, broken: bool) -> None:
        """Take note of a sample that left the stage."""
        self.broken += broken
        self.spent += share
        self.exposure += _exposure(share)


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
            earlier.left(1.0, broken=False)
        early = broken and self.stops
        self.seen[stage].left(share if early else 1.0, broken=early)

    def resumed(self, active: Active) -> None:
        """Take note of samples that an earlier run began: what they have spent took no time today."""
        for number, seen in enumerate(self.seen):
            seen.before = self._spent(number, active)

    def took(self, stage: int, seconds: float, rows: int) -> None:
        """Take note of a step of a stage: how long it took, and how many samples were in it."""
        seen = self.seen[stage]
        seen.seconds, seen.steps, seen.rows = seen.seconds + seconds, seen.steps + 1, seen.rows + rows

    def seconds(self, active: Active, outside: int) -> float | None:
        """Return the seconds left; None before any batch of an attack.

        Args:
            active: the unfinished samples.
            outside: number of samples that have not been shown to the model.

        """
        whole = self._seconds_of_stages(active)
        if whole is None:
            return None
        arriving = outside * (self.entered - self.wrong + 1) / (self.entered + 1)
        total = outside * self.entering / max(self.entered, 1)
        for number, stage in enumerate(self.stages):
            shares = [share for at, share in active if at == number]
            risk = self._risk(number, active)
            rest = [*((_rest(share, risk), 1.0) for share in shares), (_rest(0.0, risk), arriving)]
            longest = max([min(arriving, 1.0), *(1 - share for share in shares)])
            shown = sum(spent * samples for (spent, _), samples in rest)
            total += whole[number] * self._batches(stage, shown, longest, len(shares) + arriving)
            arriving = sum(stands * samples for (_, stands), samples in rest)
        known = self.entering + sum(seen.seconds for seen in self.seen)
        return total * (1 + self.beside / known if known else 1.0)

    def _risk(self, stage: int, active: Active) -> float:
        """Return a of this stage's risk a / (t + KNEE)."""
        going = [1.0 if at > stage else share for at, share in active if at >= stage]
        exposure = self.seen[stage].exposure + sum(map(_exposure, going)) + _exposure(1.0)
        return (self.seen[stage].broken + (PRIOR_BREAKS if self.stops else 0.0)) / exposure

    def _spent(self, stage: int, active: Active) -> float:
        """Return the shares of a stage's budget that all samples have spent."""
        return self.seen[stage].spent + sum(1.0 if at > stage else share for at, share in active if at >= stage)

    def _batches(self, stage: StageCost, shown: float, longest: float, samples: float) -> float:
        """Return how many batches, each through the whole stage, take as long as these shares of its budget.

        While more samples than rows are left, batches are full; the last ones take as long as the slowest of them. A
        sample that can use several rows at once leaves fewer of them empty.
        """
        if samples <= 0 or shown <= 0:
            return 0.0
        full, alone = shown / self.batch, longest / stage.faster(self.batch) * min(1.0, samples)
        if samples > self.batch:
            return max(full + alone / 2, alone)
        filled = samples / self.batch * stage.faster(self.batch / max(samples, 1.0))
        return max(full / min(filled, 1.0), alone)

    def _seconds_of_stages(self, active: Active) -> list[float] | None:
        """Return the seconds of a full batch through each stage; where none was seen, those of a usual pass."""
        own: dict[int, float] = {}
        for number, (stage, seen) in enumerate(zip(self.stages, self.seen, strict=True)):
            spent = self._spent(number, active) - seen.before
            if seen.rows and stage.foreseen:
                own[number] = seen.seconds / seen.steps * stage.work
            elif seen.rows and spent > 0:
                own[number] = seen.seconds * seen.rows / seen.steps / spent
        shown = sum(self.seen[number].seconds / each * self.stages[number].work for number, each in own.items() if each)
        if not shown:
            return None
        usual = sum(self.seen[number].seconds for number in own) / shown
        return [own.get(number, usual * stage.work) for number, stage in enumerate(self.stages)]


def _exposure(share: float) -> float:
    return math.log1p(share / KNEE)


def _rest(share: float, risk: float) -> tuple[float, float]:
    """Return what a sample at this share will still spend, and the probability that it stands to the end.

    With s = t + KNEE and e = 1 + KNEE that is the integral of (s / u)^a du from s to e, and (s / e)^a.
    """
    here, end = share + KNEE, 1 + KNEE
    power = 1 - risk
    spent = here * math.log(end / here) if abs(power) < 1e-6 else here**risk * (end**power - here**power) / power
    return max(spent, 0.0), min((here / end) ** risk, 1.0)
