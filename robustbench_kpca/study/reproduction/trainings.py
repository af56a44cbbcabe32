"""The trainings of a pack: one after the other, several at once, or each on all processes of a launch."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace

from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca._core.lock import HeldError
from robustbench_kpca._engine.inference.environment import revision
from robustbench_kpca.evaluation.reporter import Reporter
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.steps import Planned, Train
from robustbench_kpca.training.at_once import AtOnce, TrainUnit, launched, on_all_processes
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train_together
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.seeds import Wanted

_LOOK = 0.5  # seconds between two looks at how far the trainings are


@dataclass
class Trainings:
    """The trainings of a run, carried out when the first of them is asked for, or earlier.

    Attributes:
        units: what is trained in one pass, by its number in the run.
        at_once: how many units are trained at once. Without a budget all of them come before the first evaluation.
        end: moment of `time.monotonic` after which nothing is begun; None: no limit.
        after: the steps of a unit with their new states, once it was carried out.
    """

    units: Mapping[int, Sequence[Planned]]
    at_once: int
    end: float | None
    roles: Roles
    reporter: Reporter
    after: dict[int, list[Planned]] = field(default_factory=dict)

    def __getitem__(self, number: int) -> list[Planned]:
        """Return the steps of a unit with their new states."""
        if number not in self.after:
            left = [each for each in self.units if each not in self.after]
            alone = self.at_once == 1 or self.end is not None
            self._carry_out(left[: self.at_once] if alone else left)
        return self.after[number]

    def on_all_processes(self) -> None:
        """Carry out every unit on all processes of the launch, and let the others go."""
        with on_all_processes() as train:
            for number, unit in self.units.items():
                self.after[number] = self._trained(unit, train)

    def _carry_out(self, numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            self.after[numbers[0]] = self._trained(self.units[numbers[0]], train_together)
            return
        first = self._of_different_networks(numbers)
        count = min(self.at_once, len(first))
        progress = self.reporter.start(f"{len(first)} trainings, {count} at once")
        with ThreadPoolExecutor(count) as threads, closing(AtOnce(count)) as pool:
            futures = {
                number: threads.submit(self._trained, self.units[number], pool.train, shown=False) for number in first
            }
            while wait(futures.values(), _LOOK).not_done:
                progress(*pool.images)
            self.after |= {number: future.result() for number, future in futures.items()}
        for number in numbers:
            if number not in first:
                self.after[number] = self._trained(self.units[number], train_together)

    def _of_different_networks(self, numbers: Sequence[int]) -> list[int]:
        """Return the units of which no earlier one trains a network: two arms may share a training."""
        names: set[str] = set()
        different = []
        for number in numbers:
            own = {planned.step.model.name for planned in self.units[number]}
            different += [] if own & names else [number]
            names |= own
        return different

    def _trained(self, unit: Sequence[Planned], train: TrainUnit, *, shown: bool = True) -> list[Planned]:
        """Train models of one arm; return their steps with new states: open where the budget ended or others train.

        What cannot be trained in one pass is trained one by one.

        Raises:
            BenchmarkError: on all processes of a launch, which no longer do the same.
        """
        if self.end is not None and time.monotonic() >= self.end:
            return [replace(planned, why="beyond the budget") for planned in unit]
        try:
            self._train([planned.step for planned in unit if isinstance(planned.step, Train)], train, shown=shown)
        except BenchmarkError as error:
            if launched():
                raise
            if len(unit) > 1:
                return [done for planned in unit for done in self._trained([planned], train, shown=shown)]
            return [replace(unit[0], state="open" if isinstance(error, HeldError) else "failed", why=str(error))]
        return [_after_training(planned) for planned in unit]

    def _train(self, steps: Sequence[Train], train: TrainUnit, *, shown: bool) -> None:
        """Train the seeds of one arm in one pass."""
        trainings = [step.training for step in steps]
        first = trainings[0]
        title = f"{first.name} and {len(steps) - 1} more" if len(steps) > 1 else first.name
        wanted = [Wanted(training.name, *load_recipe(training.recipe, training.settings)[1:]) for training in trainings]
        options = Options(
            resume=True,
            data=self.roles.folders.get(first.data),
            keep_every=first.keep_every,
            stop_at=self.end,
            revision=revision(),
            on_step=self.reporter.start(title) if shown else None,
        )
        train(wanted, [training.weights.parent for training in trainings], options)


def _after_training(planned: Planned) -> Planned:
    if is_trained(planned):
        return replace(planned, state="done")
    assert isinstance(planned.step, Train)
    epochs = planned.step.training.epochs_done()
    return replace(planned, why=f"stopped by the budget after epoch {epochs}; it goes on next time")


def is_trained(planned: Planned) -> bool:
    """Tell whether the weights of a step's model are there; a finished model always has them."""
    training = planned.step.model.training
    return training is None or training.weights.is_file()
