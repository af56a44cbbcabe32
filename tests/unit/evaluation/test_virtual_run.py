"""A simulated run ends every shard once, whatever happens to its workers, and takes no less than the work needs."""

import math

import pytest
from _virtual_run import Simulation, World

from robustbench_kpca.evaluation.shard_run import ATTEMPTS
from robustbench_kpca.records.shards import plan_shards

SHARDS = plan_shards([str(number) for number in range(1000)], "key", 4)


def run(**world):
    return Simulation(SHARDS, World(**{"seconds": 60.0, "workers": 20, "spread": 0.0, "slow": 0.0} | world)).run()


def test_without_trouble_it_takes_what_arithmetic_says():
    told = run()
    assert told.makespan == pytest.approx(math.ceil(250 / 20) * 60)
    assert told.ideal == pytest.approx(250 * 60 / 20)
    assert told.attempts == 250
    assert told.wasted == 0


@pytest.mark.parametrize("seed", range(3))
def test_every_shard_is_finished_once_in_trouble(seed):
    told = run(spread=0.2, slow=0.05, life=1500.0, every=400.0, share=0.2, away=100.0, seed=seed)
    assert set(told.finished) | set(told.given_up) == set(SHARDS)
    assert not set(told.finished) & set(told.given_up)
    assert set(told.finished.values()) == {1}
    assert told.lost > 0
    assert told.preempted > 0
    assert told.attempts == len(told.finished) + told.lost + told.preempted
    assert told.wasted <= told.lost * World(1.0).journal * 2
    assert told.makespan > told.ideal


def test_poisoned_shards_are_given_up_and_one_seed_gives_one_run():
    told = run(poisoned=2)
    assert len(told.given_up) == 2
    assert len(told.finished) == len(SHARDS) - 2
    assert told.wasted == pytest.approx(2 * ATTEMPTS * 30)
    world = {"spread": 0.2, "life": 1500.0, "every": 400.0, "seed": 5}
    one, two = run(**world), run(**world)
    assert (one.makespan, one.wasted, one.attempts) == (two.makespan, two.wasted, two.attempts)
    assert run(**world | {"seed": 6}).makespan != one.makespan
