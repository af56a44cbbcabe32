"""How long a worker is silent, how fast it is, and files that carry their digest."""

import random

import pytest
from unfinished_states import STATE, Clock

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import sealed, unsealed
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.shard_folder import (
    Running,
)
from robustbench_kpca.evaluation.shard_run import TICK, ShardRun, Turn
from robustbench_kpca.evaluation.sharded import Sharded, Worker
from robustbench_kpca.evaluation.shards import Made, plan_shards


@pytest.fixture
def clock():
    return Clock()


def test_silence_is_counted_from_look_to_look(clock):
    turn = Turn(10, "node", 7, clock)
    for second in range(1, 8):
        clock.now += 1
        assert turn.look() == second
    turn.heard(1)
    assert turn.look() == 0
    clock.now += 3600  # this process was stopped itself
    assert turn.look() == TICK
    clock.now -= 7200  # not that a monotonic clock does this
    assert turn.look() == TICK


def test_the_rate_leaves_out_what_a_resumed_shard_finds_done(clock):
    turn = Turn(10, "node", 7, clock)
    assert turn.running().per_second is None
    clock.now += 5
    turn.heard(4)
    assert turn.running().per_second is None
    clock.now += 2
    turn.heard(8)
    assert turn.running() == Running("node", 7, turn.since, 8, 10, 2.0)


def test_the_time_left_follows_from_finished_shards(tmp_path):
    run = ShardRun(tmp_path, plan_shards([str(number) for number in range(40)], "key", 10), STATE, 1, None, None)
    assert run._left(0, 2) is None
    for _ in range(2):
        run.finished(run.next(), Made(1, 15.0, 4), b"any bytes")
    assert run._left(20, 2) == (STATE.samples - 20) * 30 / 20 / 2
    assert run._left(20, 0) == (STATE.samples - 20) * 30 / 20


class Engine(Sharded):
    """Has workers that say nothing."""

    ended = ()

    def start(self):
        raise AssertionError

    order = news = stop = start

    def kill(self, worker):
        self.ended = (*self.ended, worker.pid)


def test_workers_that_are_silent_are_ended_and_their_shards_have_failed(tmp_path, clock):
    shards = plan_shards([str(number) for number in range(3)], "key", 1)
    run = ShardRun(tmp_path, shards, STATE, 1, None, None)
    engine = Engine(3)
    for number in range(3):
        shard = run.schedule.next()
        engine.workers.append(Worker("node", number, True, shard, Turn(1, "node", number, clock)))
    engine.workers.append(Worker("node", 3, True))  # idle
    for second in range(70):
        clock.now += 1
        engine.workers[0].turn.heard(second)
        engine._end_silent(60, run)
    assert engine.ended == (1, 2)
    assert [worker.pid for worker in engine.workers] == [0, 3]
    assert run.schedule.failures == {shards[1]: 1, shards[2]: 1}
    assert run.schedule.open == 3, "they are tried again"


@pytest.mark.parametrize("minutes", [-1, float("nan"), float("inf")])
def test_a_stall_is_a_number_of_minutes(minutes):
    with pytest.raises(BadInputError, match="stall_minutes"):
        RunOptions(stall_minutes=minutes)


def test_an_altered_file_is_noticed():
    data = random.Random(0).randbytes(300)
    content = sealed(data)
    assert unsealed(content) == data
    for at in range(len(content)):
        altered = bytearray(content)
        altered[at] ^= 1
        with pytest.raises(ValueError, match="SHA-256"):
            unsealed(bytes(altered))
        with pytest.raises(ValueError, match="SHA-256"):
            unsealed(content[:at])


def test_an_altered_journal_is_not_used(tmp_path):
    """Torch itself loads altered numbers without a word."""
    journal = Journal(tmp_path / "j", "spec")
    journal.write({"rows": {0: [1.5, 2.5]}})
    assert Journal(tmp_path / "j", "spec").read()["rows"] == {0: [1.5, 2.5]}
    whole = (tmp_path / "j").read_bytes()
    for at in range(0, len(whole), 37):
        altered = bytearray(whole)
        altered[at] ^= 1
        (tmp_path / "j").write_bytes(altered)
        assert Journal(tmp_path / "j", "spec").read() is None
