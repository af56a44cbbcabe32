"""How many passes of a model an attack takes at most, how many it has made, and how many are still possible.

A sample that breaks leaves, so what is possible is the most that is left. `_core.progress` makes seconds of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from robustbench_kpca._core.progress import Every, Progress
from robustbench_kpca._engine.attack_loop.engine import Engine, build_attack
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca.attacks.shared.passes import evaluated
from robustbench_kpca.protocols.scenario import Attack, Corruption, Scenario
from robustbench_kpca.types import Attack as Algorithm


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes per sample."""

    forwards: int
    backwards: int

    @property
    def total(self) -> int:
        """Forward and backward passes together."""
        return self.forwards + self.backwards

    @property
    def in_forwards(self) -> int:
        """What they cost in forward passes: a backward pass costs about two."""
        return self.forwards + 2 * self.backwards

    def times(self, number: int) -> "Passes":
        """Return so many times as many passes."""
        return Passes(number * self.forwards, number * self.backwards)


def passes_of(attack: Algorithm, classes: int) -> tuple[int, int] | None:
    """Return the most forward and backward passes of a restart of an attack; None where it does not say."""
    formula = getattr(attack, "most_passes", None)
    return None if formula is None else evaluated(formula, vars(attack), classes)


def takes_gradients(scenario: Attack) -> bool:
    """Whether an attack of a protocol takes gradients; so may one that does not say what it costs."""
    stated = (passes_of(build_attack(stage), 2) for stage in scenario.stage)
    return any(passes is None or passes[1] for passes in stated)


def most_passes(scenario: Scenario, classes: int, *, graded: bool = False) -> Passes | None:
    """Return the passes of a sample that no attack breaks, the clean one included; None where that is not known.

    With `draws` every pass is made so often, and with smaller budgets (`below`) all of it once more for each. Where
    success is `graded`, the worst image of every stage is confirmed; under the policy `strongest`, one image.
    """
    if isinstance(scenario, Corruption):
        return Passes(len(scenario.cells), 0).times(scenario.draws)
    if not isinstance(scenario, Attack):
        return Passes(1, 0).times(scenario.draws)
    forwards, backwards = 1 + (len(scenario.stage) if graded else scenario.policy == "strongest"), 0
    forwards += scenario.storage is not None
    for stage in scenario.stage:
        most = passes_of(build_attack(stage), classes)
        if most is None:
            return None
        spent = stage.spent(*most)
        forwards += stage.restarts * int(spent[0])
        backwards += stage.restarts * int(spent[1])
    return Passes(forwards, backwards).times(scenario.draws * (1 + len(scenario.below)))


EVERY = 0.5  # seconds between two looks at the samples under attack; each look waits for the device, once


class Watch:
    """Tells a `Progress` how far an attack is: passes made, and passes that are still possible.

    Args:
        engine: runs the attack.
        total: number of samples, those included that are finished already.
        classes: number of classes, on which the passes of some attacks depend.
        progress: what is told; None: nothing is.
    """

    def __init__(self, engine: Engine, total: int, classes: int, progress: Progress | None) -> None:
        self.engine, self.total, self.progress = engine, total, progress
        self.budgets = _budgets(engine, classes)
        self.finished = self.broken = self.spent = 0
        self.looks = Every(EVERY, at_once=True)

    def begin(self, finished: int, broken: int) -> None:
        """Take note of the samples that an earlier run has finished, the broken ones among them."""
        self.finished, self.broken = finished, broken

    def sample(self, sample: Sample) -> None:
        """Take note of a finished sample."""
        self.finished += 1
        self.spent += sample.forwards + sample.backwards
        self.broken += sample.broken_by != ""

    def batch(self) -> None:
        """Report after a batch, if it is time."""
        if self.looks.due():
            self.report()

    def report(self) -> None:
        """Tell the `Progress` how far the attack is."""
        if self.progress is None:
            return
        active = self._active()
        seen = self.finished + len(active)
        stops = self.engine.cascade.stops
        result = f"{100 * (seen - self.broken) / seen:.1f} % of {seen} stand" if seen and stops else ""
        passes = None
        if self.budgets is not None:
            done = self.spent + sum(sample.forwards + sample.backwards for sample in active)
            possible = sum(_possible(sample, self.budgets) for sample in active)
            passes = done, done + possible + max(self.total - seen, 0) * sum(self.budgets)
        self.progress(self.finished, self.total, passes=passes, stage=self._stage(), result=result)

    def _stage(self) -> str:
        pools = self.engine.pools
        if not pools:  # a protocol without attacks, such as `teo2024-cut-off`
            return "clean"
        stage = next((number for number, pool in enumerate(pools) if pool is self.engine.current), 0)
        below = f"eps {self.engine.threat.eps:.4g} " if self.engine.scenario.below else ""
        return below + pools[stage].name + (f" ({stage + 1} of {len(pools)})" if len(pools) > 1 else "")

    def _active(self) -> list[Sample]:
        """Return the unfinished samples that the model was shown."""
        for pool in self.engine.pools:
            pool.book()
        samples = [candidate.sample for candidate in self.engine.candidates]
        for pool in self.engine.pools:
            samples += [entry for entry in pool.active if isinstance(entry, Sample)]
            samples += [sample for sample, _ in pool.waiting]
        return samples


def _possible(sample: Sample, budgets: Sequence[int]) -> int:
    """Return the passes that a sample can still spend; in the stages before its own it spent all that it could."""
    own, later = budgets[sample.stage], sum(budgets[sample.stage + 1 :])
    left = sum(budgets) - later - sample.forwards - sample.backwards
    return min(max(left, 0), own) + later


def _budgets(engine: Engine, classes: int) -> list[int] | None:
    """Return the most passes of a sample in each stage, restarts included; None where an attack does not say."""
    budgets = []
    for pool in engine.pools:
        most = passes_of(pool.attack, classes)
        if most is None:
            return None
        budgets.append(pool.restarts * engine.runner.draws * sum(most))
    return budgets


@dataclass
class Meter:
    """Counts the passes of several attacks one after the other, as in an audit.

    Attributes:
        possible: the most passes of what has not ended yet.
        progress: what is told.
        stage: what is done now.
        done: passes of what has ended.
    """

    possible: int = 0
    progress: Progress | None = None
    stage: str = ""
    done: int = 0

    def during(self, spent: int) -> None:
        """Report while an attack runs that has spent so many passes."""
        if self.progress is not None:
            done = self.done + spent
            most = max(self.done + self.possible, done)
            self.progress(done, most, passes=(done, most), stage=self.stage)

    def after(self, spent: int, most: int) -> None:
        """Take note that an attack has ended: what it did not spend is no longer possible."""
        self.possible, self.done = max(self.possible - most, 0), self.done + spent
        self.during(0)
