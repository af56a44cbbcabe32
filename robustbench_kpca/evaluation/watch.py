"""Watch an attack: what is done, what is still possible, what stands so far, and how long it will take."""

import time
from collections.abc import Callable

from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.attack_loop.cost import passes_of
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca.evaluation.time_left import Forecast, StageCost
from robustbench_kpca.types import Foreseen, SeparateRuns

EVERY = 0.5  # seconds between two looks at the samples under attack; each look waits for the device, once


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
        self,
        engine: Engine,
        total: int,
        classes: int,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine, self.total, self.progress, self.clock = engine, total, progress, clock
        self.stages = _stages(engine, classes)
        self.most = sum(stage.passes for stage in self.stages)
        self.forecast = Forecast(self.stages, engine.runner.batch_size, stops=engine.cascade.stops)
        self.known = self.finished = self.broken = self.spent = self.at = 0
        self.steps = [pool.steps for pool in engine.pools]
        self.last, self.told = clock(), clock() - EVERY

    def begin(self, finished: int, broken: int) -> None:
        """Take note of what is done already: so many samples, the broken ones among them, and what is in the pools."""
        self.known, self.broken = finished, broken
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
                self.forecast.took(self.at, seconds, self.engine.pools[self.at].rows)
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
        seen = self.known + self.finished + len(active)
        result = f"{100 * (seen - self.broken) / seen:.1f} % of {seen} stand" if seen and self.forecast.stops else ""
        done = self.known + self.finished
        if not self.stages:
            self.progress(done, self.total, stage=self._stage(), result=result)
            return
        outside = max(self.total - seen, 0)
        done_passes = self.spent + spent
        possible = sum(self.stages[stage].passes * (1 - share) + self._after(stage) for stage, share in active)
        self.progress(
            done,
            self.total,
            passes=(done_passes, done_passes + round(possible) + outside * self.most),
            stage=self._stage(),
            result=result,
            left=self.forecast.seconds(active, outside),
        )

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
            samples += [one for one in pool.active if isinstance(one, Sample)]
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


def _stages(engine: Engine, classes: int) -> list[StageCost]:
    """Return what every stage can cost; nothing where one does not say."""
    found = []
    for pool in engine.pools:
        most = passes_of(pool.attack, classes)
        if most is None:
            return []
        runs = getattr(pool.attack, "targets", 1) if isinstance(pool.attack, SeparateRuns) else 1
        forwards, backwards = (pool.restarts * engine.runner.draws * one for one in most)
        lanes = max(min(runs, classes - 1), 1)
        found.append(StageCost(forwards, backwards, lanes, isinstance(pool.attack, Foreseen)))
    return found
