"""Watch an attack: what is done, what is still possible, what stands so far, and how long it will take.

A sample that breaks leaves, so the time left is not what is left of the budget: it is what samples are expected to
spend. Each stage has a risk: its breaks by the shares of its budget that samples have spent. To these are added one
sample that spent all, and a twentieth of a break, for stages that nobody has reached.

Batches are full while samples wait; a smaller batch takes as long as a full one. So a stage takes at least as long as
its longest sample.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.attack_loop.cost import passes_of
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca.types import Foreseen, SeparateRuns

EVERY = 0.5  # seconds between two looks at the samples under attack; each look waits for the device, once
BACKWARD = 2.0  # a backward pass costs about two forward passes
PRIOR_BREAKS = 0.05
ACCEPTED = 0.05  # share of proposals that are kept, for attacks whose next proposals are shown ahead
Active = Sequence[tuple[int, float]]
"""Of every unfinished sample: its stage, and the share of that stage's budget that it has spent."""


@dataclass
class Stage:
    """What a stage can cost a sample, restarts included, and what was seen of it.

    Attributes:
        forwards: most forward passes.
        backwards: most backward passes.
        lanes: how many rows of a batch one sample can use at once: 1, or the runs that can be begun before their turn.
        foreseen: whether free rows show the next proposals of a sample.
        broken: samples that broke in it.
        spent: shares of its budget, added up over the samples that left it.
        seconds: that its steps took.
        steps: number of its steps.
        rows: samples in these steps, added up.
        before: shares that were spent before this run was resumed.
    """

    forwards: int
    backwards: int
    lanes: int = 1
    foreseen: bool = False
    broken: int = 0
    spent: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    before: float = 0.0

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

    def took(self, seconds: float, rows: int) -> None:
        """Take note of a step: how long it took, and how many samples were in it."""
        self.seconds, self.steps, self.rows = self.seconds + seconds, self.steps + 1, self.rows + rows


class Forecast:
    """Learns from a run of the stages, and foretells its rest.

    Args:
        stages: the cascade.
        batch: rows of a batch.
        stops: whether a broken sample leaves.
    """

    def __init__(self, stages: Sequence[Stage], batch: int, *, stops: bool) -> None:
        self.stages, self.batch, self.stops = stages, batch, stops
        self.entering = self.beside = 0.0
        self.entered = self.wrong = 0

    def finished(self, stage: int, share: float, *, broken: bool) -> None:
        """Take note of a sample that was attacked: broken at a share of this stage's budget, or standing after it."""
        for earlier in self.stages[:stage]:
            earlier.spent += 1.0
        early = broken and self.stops
        self.stages[stage].broken += early
        self.stages[stage].spent += share if early else 1.0

    def resumed(self, active: Active) -> None:
        """Take note of samples that an earlier run began: what they have spent took no time today."""
        for number, stage in enumerate(self.stages):
            stage.before = self._spent(number, active)

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
            left = [1 - share for at, share in active if at == number]
            risk = (stage.broken + PRIOR_BREAKS * self.stops) / (self._spent(number, active) + 1)
            longest = max([min(arriving, 1.0), *left])
            samples = [*((each, 1.0) for each in left), (1.0, arriving)]
            full = sum(count * _expected(each, risk) for each, count in samples) / self.batch
            alone = longest / stage.faster(self.batch) * min(1.0, len(left) + arriving)
            total += whole[number] * max(full + alone / 2, alone)
            arriving = sum(count * math.exp(-risk * each) for each, count in samples)
        known = self.entering + sum(stage.seconds for stage in self.stages)
        return total * (1 + self.beside / known if known else 1.0)

    def _spent(self, stage: int, active: Active) -> float:
        """Return the shares of a stage's budget that all samples have spent."""
        return self.stages[stage].spent + sum(1.0 if at > stage else share for at, share in active if at >= stage)

    def _seconds_of_stages(self, active: Active) -> list[float] | None:
        """Return the seconds of a full batch through each stage; where none was seen, those of a usual pass."""
        own: dict[int, float] = {}
        for number, stage in enumerate(self.stages):
            spent = self._spent(number, active) - stage.before
            if stage.rows and stage.foreseen:
                own[number] = stage.seconds / stage.steps * stage.work
            elif stage.rows and spent > 0:
                own[number] = stage.seconds * stage.rows / stage.steps / spent
        shown = sum(self.stages[at].seconds / each * self.stages[at].work for at, each in own.items() if each)
        if not shown:
            return None
        usual = sum(self.stages[number].seconds for number in own) / shown
        return [own.get(number, usual * stage.work) for number, stage in enumerate(self.stages)]


def _expected(left: float, risk: float) -> float:
    """Return the share that a sample will still spend of what is left to it."""
    return -math.expm1(-risk * left) / risk if risk else left


class Watch:
    """Told of every batch and of every finished sample; reports to a `Progress` twice a second.

    Args:
        engine: runs the attack.
        total: number of samples, those included that are finished already.
        classes: number of classes, on which the passes of some attacks depend.
        progress: what is reported to.
        clock: seconds.
    """

    def __init__(
        self, engine: Engine, total: int, classes: int, progress: Progress, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.engine, self.total, self.progress, self.clock = engine, total, progress, clock
        self.stages = _stages(engine, classes)
        self.most = sum(stage.passes for stage in self.stages)
        self.forecast = Forecast(self.stages, engine.runner.batch_size, stops=engine.cascade.stops)
        self.finished = self.broken = self.spent = self.at = 0
        self.steps = [pool.steps for pool in engine.pools]
        self.last, self.told = clock(), clock() - EVERY

    def begin(self, finished: int, broken: int) -> None:
        """Take note of what is done already: so many samples, the broken ones among them, and what is in the pools."""
        self.finished, self.broken = finished, broken
        self.forecast.resumed(self._active()[0])
        self.last = self.clock()

    def sample(self, sample: Sample) -> None:
        """Take note of a finished sample."""
        self.finished += 1
        self.spent += sample.forwards + sample.backwards
        self.broken += sample.broken_by != ""
        if sample.before and self.engine.scenario.labels == "true":  # it was not attacked
            self.forecast.wrong += 1
        elif self.stages:
            self.forecast.finished(sample.stage, self._share(sample), broken=sample.broken_by != "")

    def batch(self) -> None:
        """Take note of a batch, and report if it is time."""
        now = self.clock()
        seconds, self.last = now - self.last, now
        stepped = [number for number, pool in enumerate(self.engine.pools) if pool.steps > self.steps[number]]
        if stepped:
            self.at = stepped[0]
            self.steps[self.at] = self.engine.pools[self.at].steps
            if self.stages:  # without their costs nothing is foretold
                self.stages[self.at].took(seconds, self.engine.pools[self.at].rows)
        elif self.engine.entered > self.forecast.entered:
            self.forecast.entering += seconds
            self.forecast.entered = self.engine.entered
        else:
            self.forecast.beside += seconds
        if now - self.told >= EVERY:
            self.told = now
            self.report()

    def report(self) -> None:
        """Tell the `Progress` how far the attack is."""
        active, spent = self._active()
        seen = self.finished + len(active)
        result = f"{100 * (seen - self.broken) / seen:.1f} % of {seen} stand" if seen and self.forecast.stops else ""
        if not self.stages:
            self.progress(self.finished, self.total, stage=self._stage(), result=result)
            return
        outside, spent = max(self.total - seen, 0), spent + self.spent
        possible = sum(self.stages[stage].passes * (1 - share) + self._after(stage) for stage, share in active)
        passes, left = spent + round(possible) + outside * self.most, self.forecast.seconds(active, outside)
        self.progress(self.finished, self.total, passes=(spent, passes), stage=self._stage(), result=result, left=left)

    def _stage(self) -> str:
        pools = self.engine.pools
        if not pools:  # a protocol without attacks, such as `teo2024-cut-off`
            return "clean"
        name = pools[self.at].name
        below = f"eps {self.engine.threat.eps:.4g} " if self.engine.scenario.below else ""
        return below + (f"{name} ({self.at + 1} of {len(pools)})" if len(pools) > 1 else name)

    def _active(self) -> tuple[list[tuple[int, float]], int]:
        """Return of every unfinished sample its stage and the share of its budget there; and the passes of all."""
        for pool in self.engine.pools:
            pool.book()
        samples = [candidate.sample for candidate in self.engine.candidates]
        for pool in self.engine.pools:
            samples += [entry for entry in pool.active if isinstance(entry, Sample)]
            samples += [sample for sample, _ in pool.waiting]
        spent = sum(sample.forwards + sample.backwards for sample in samples)
        return [(sample.stage, self._share(sample)) for sample in samples], spent

    def _share(self, sample: Sample) -> float:
        """Return the share of its stage's budget that a sample has spent; in the stages before, it spent all."""
        if not self.stages:
            return 0.0
        spent = sample.forwards + sample.backwards - (self.most - self._after(sample.stage - 1))
        return min(max(spent / self.stages[sample.stage].passes, 0.0), 1.0)

    def _after(self, stage: int) -> int:
        """Return the passes of all later stages."""
        return sum(later.passes for later in self.stages[stage + 1 :])


def _stages(engine: Engine, classes: int) -> list[Stage]:
    """Return what every stage can cost; nothing where one does not say."""
    stages = []
    for pool in engine.pools:
        most = passes_of(pool.attack, classes)
        if most is None:
            return []
        runs = getattr(pool.attack, "targets", 1) if isinstance(pool.attack, SeparateRuns) else 1
        forwards, backwards = (pool.restarts * engine.runner.draws * each for each in most)
        lanes = max(min(runs, classes - 1), 1)
        stages.append(Stage(forwards, backwards, lanes, isinstance(pool.attack, Foreseen)))
    return stages
