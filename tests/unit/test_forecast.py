"""The time left is foretold within a factor of two after a tenth of a run: simulated cascades and one recorded run."""

import json
import random
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca.evaluation import time_left
from robustbench_kpca.evaluation.time_left import BACKWARD, Forecast, Stage

KEPT = 0.03  # share of the proposals of Square that are kept


class Simulated:
    """The engine's order of work with samples that break when they are told to, and a clock that counts batches.

    A stage is (cost, seconds of a step, passes of a step); `fates` gives each sample the stage and the share of its
    budget at which it breaks, or None where it stands.
    """

    def __init__(self, stages, step_seconds, fates, batch, entering=0.0):
        self.stages = [replace(stage) for stage in stages]
        self.step_seconds, self.batch, self.entering = step_seconds, batch, entering
        self.waiting, self.fates = deque(range(len(fates))), fates
        self.pools = [[] for _ in stages]  # [sample, work spent in this stage]
        self.forecast = Forecast(self.stages, batch, stops=True)
        self.clock, self.told, self.rng = 0.0, [], random.Random(0)

    def run(self, every):
        """Run to the end, and ask for the time left after every so many batches."""
        batches = 0
        while self._batch():
            batches += 1
            if batches % every == 0:
                rows = [(number, spent) for number, pool in enumerate(self.pools) for _, spent in pool]
                active = [(number, spent / self.stages[number].work) for number, spent in rows]
                self.told.append((self.clock, self.forecast.seconds(active, len(self.waiting))))
        return self

    def _batch(self):
        full = [number for number, pool in enumerate(self.pools) if len(pool) >= self.batch]
        some = [number for number, pool in enumerate(self.pools) if pool]
        if not full and self.waiting:
            self._enter()
        elif full or some:
            self._step(full[-1] if full else some[0])
        else:
            return False
        return True

    def _enter(self):
        batch = [self.waiting.popleft() for _ in range(min(self.batch, len(self.waiting)))]
        self.pools[0] += [[one, 0.0] for one in batch]
        self.clock += self.entering
        self.forecast.entering += self.entering
        self.forecast.entered += len(batch)

    def _step(self, number):
        stage, pool = self.stages[number], self.pools[number]
        active, rest = pool[: self.batch], pool[self.batch :]
        lanes = min(stage.lanes, self.batch / len(active))
        self.clock += self.step_seconds[number]
        stage.took(self.step_seconds[number], round(len(active) * lanes))
        each, more = divmod(self.batch, len(active))
        stay = []
        for row, (sample, spent) in enumerate(active):
            if stage.foreseen:  # goes on to the first proposal that is kept
                shown = each + (row < more)
                spent += next((k for k in range(1, shown) if self.rng.random() < KEPT), shown)
            else:
                spent += (1 + BACKWARD) * lanes
            fate = self.fates[sample]
            if fate and fate[0] == number and spent >= fate[1] * stage.work:
                self.forecast.finished(number, spent / stage.work, broken=True)
            elif spent < stage.work:
                stay.append([sample, spent])
            elif number + 1 < len(self.stages):
                self.pools[number + 1].append([sample, 0.0])
            else:
                self.forecast.finished(number, 1.0, broken=False)
        self.pools[number] = stay + rest

    def errors(self, first=0.1, last=0.9):
        """Return the foretold time left, relative to the true one, between these shares of the run."""
        end = self.clock
        return [
            left / (end - clock) for clock, left in self.told if first * end <= clock <= last * end and left is not None
        ]


PGD = Stage(21, 20)
AUTOATTACK = [
    Stage(101, 101), Stage(911, 909, lanes=9), Stage(1802, 900, lanes=9),
    Stage(5001, 0, foreseen=True),
]  # fmt: skip


def fates(n, seed, *per_stage, early=2.0):
    """Each sample breaks in a stage with the given probability, rather early than late in its budget."""
    rng, found = random.Random(seed), []
    for _ in range(n):
        broken = next((number for number, p in enumerate(per_stage) if rng.random() < p), None)
        found.append(None if broken is None else (broken, rng.random() ** early))
    return found


CASES = {
    "pgd, half breaks, many batches": ([PGD], [1.0], fates(1000, 0, 0.5), 64),
    "pgd, nothing breaks": ([PGD], [1.0], fates(640, 1, 0.0), 64),
    "pgd, all breaks at once": ([PGD], [1.0], fates(3000, 2, 1.0, early=8), 64),
    "pgd, one batch": ([PGD], [1.0], fates(64, 3, 0.4), 64),
    "pgd, fewer than a batch": ([PGD], [1.0], fates(24, 4, 0.3), 64),
    "pgd, one more than a batch": ([PGD], [1.0], fates(65, 5, 0.2), 64),
    "pgd, all breaks late": ([PGD], [1.0], fates(1000, 6, 1.0, early=0.2), 64),
    "autoattack, robust model": (AUTOATTACK, [3.0, 3.1, 3.6, 1.1], fates(256, 7, 0.4, 0.06, 0.0, 0.01), 64),
    "autoattack, weak model": (AUTOATTACK, [3.0, 3.1, 3.6, 1.1], fates(1000, 8, 0.95, 0.3, 0.0, 0.02), 64),
    "autoattack, one batch": (AUTOATTACK, [3.0, 3.1, 3.6, 1.1], fates(64, 9, 0.5, 0.1), 64),
    "autoattack, 24 samples": (AUTOATTACK, [3.0, 3.1, 3.6, 1.1], fates(24, 10, 0.5, 0.1), 64),
    "autoattack, slow fab": (AUTOATTACK, [3.0, 3.1, 6.0, 1.1], fates(256, 11, 0.3, 0.1), 64),
    "a weak stage first": ([Stage(2, 1), PGD], [1.0, 1.0], fates(1000, 12, 0.2, 0.5), 64),
}


@pytest.mark.parametrize("case", CASES)
def test_the_time_left_is_right_within_a_factor_of_two_after_a_tenth(case):
    stages, seconds, fate, batch = CASES[case]
    errors = Simulated(stages, seconds, fate, batch, entering=0.5).run(every=50 if stages == AUTOATTACK else 1).errors()
    assert len(errors) > 5
    assert min(errors) >= 0.5, min(errors)
    assert max(errors) <= 2, max(errors)


def test_the_time_left_of_a_recorded_run():
    """What a `Forecast` knew at 34 moments of AutoAttack on 48 digits, with the seconds that were measured."""
    run = json.loads((Path(__file__).parents[1] / "recorded" / "autoattack_48_digits.json").read_text())
    errors = []
    for look in run["looks"]:
        pairs = zip(run["stages"], look["seen"], strict=True)
        forecast = Forecast([Stage(*stage[1:], *seen) for stage, seen in pairs], run["batch"], stops=True)
        for name in ("entering", "beside", "entered", "wrong"):
            setattr(forecast, name, look[name])
        left = forecast.seconds([tuple(one) for one in look["active"]], look["outside"])
        errors.append(left / (run["end"] - look["clock"]))
    assert len(errors) > 30
    assert min(errors) >= 0.5, min(errors)
    assert max(errors) <= 2, max(errors)


def test_nothing_is_foretold_before_the_first_step():
    assert Forecast([PGD], 64, stops=True).seconds([], 100) is None


def test_a_protocol_without_attacks_reports_too(monkeypatch):
    monkeypatch.setattr(time_left, "EVERY", 0.0)
    told = []
    evaluate(
        load_model("vit_digits"), load_data("digits", limit=4), protocol="teo2024-cut-off", audit=False,
        progress=lambda done, total, **news: told.append(news["stage"]),
    )  # fmt: skip
    assert set(told) == {"clean"}


def test_where_broken_samples_stay_every_pass_is_counted():
    """With `stops=False` 640 samples of 61 units of work each are left, and a row does one unit in a second."""
    forecast = Forecast([replace(PGD)], 64, stops=False)
    forecast.stages[0].took(64 * 3.0, 64)
    left = forecast.seconds([(0, 3 / PGD.work)] * 64, 576)
    assert left == pytest.approx(64 * (10 * PGD.work - 3), rel=0.06)


@pytest.mark.parametrize("left", [0.3, 1.0])
def test_what_samples_will_spend_is_what_drawn_ones_spend(left):
    """The seconds of 100 full batches; as many samples are drawn with that risk of a break in every small share."""
    forecast, rng = Forecast([replace(PGD)], 64, stops=True), random.Random(0)
    for share in (*[0.1] * 6000, *[1.0] * 3000):
        forecast.finished(0, share, broken=share < 1)
    spent = 6000 * 0.1 + 3000 + 6400 * (1 - left)
    drawn = sum(min(rng.expovariate(6000 / spent), left) for _ in range(6400))
    forecast.stages[0].took(spent / 64, 64)  # a full batch through the stage takes a second
    assert forecast.seconds([(0, 1 - left)] * 6400, 0) == pytest.approx(drawn / 64 + left / 2, rel=0.02)
