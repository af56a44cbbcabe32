"""How long a worker is silent, how fast it is, and files that carry their digest."""

import random
from unittest.mock import Mock

import pytest
from unfinished_states import STATE, Clock

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import sealed, unsealed
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.evaluation import sharded
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.pool import TICK, Call, Pool, Worker
from robustbench_kpca.evaluation.shard_folder import Running
from robustbench_kpca.evaluation.shard_run import ShardRun
from robustbench_kpca.evaluation.shards import Made, plan_shards


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(Call, "clock", clock)
    return clock


def begun():
    call = Call()
    call.begin(Mock(Worker, host="node", pid=7))
    return call


def at(call, batches, rows):
    call.batches, call.rows = batches, rows
    return call


def test_silence_is_counted_from_look_to_look(clock):
    call = begun()
    for second in range(1, 8):
        clock.now += 1
        assert call.silence(10) == second
    assert at(call, 1, 1).silence(10) == 0
    clock.now += 3600  # this process was stopped itself
    assert call.silence(10) == TICK
    clock.now -= 7200  # not that a monotonic clock does this
    assert call.silence(10) == TICK


def test_the_rate_leaves_out_what_a_resumed_shard_finds_done(clock):
    call = begun()
    assert call.as_running(10).per_second is None
    clock.now += 5
    at(call, 1, 4).silence(10)
    assert call.as_running(10).per_second is None
    clock.now += 2
    at(call, 2, 8).silence(10)
    assert call.as_running(10) == Running("node", 7, call.as_running(10).since, 8, 10, 2.0)


def test_the_time_left_follows_from_finished_shards(tmp_path):
    run = ShardRun(tmp_path, plan_shards([str(number) for number in range(40)], "key", 10), STATE, 1, None)
    assert run._left(0, 2) is None
    for _ in range(2):
        run.finished(run.next(), Made(1, 15.0, 4), b"any bytes")
    assert run._left(20, 2) == (STATE.samples - 20) * 30 / 20 / 2
    assert run._left(20, 0) == (STATE.samples - 20) * 30 / 20


class Silent(Pool):
    """Its calls run, and say nothing."""

    def start(self, rank):
        raise AssertionError

    def submit(self, *what):
        return begun()


def test_calls_that_are_silent_are_ended_and_their_shards_have_failed(tmp_path, clock, monkeypatch):
    """One of three workers says something every second."""
    monkeypatch.setattr("robustbench_kpca.evaluation.shard_run.PAUSES", ())
    shards = plan_shards([str(number) for number in range(3)], "key", 1)
    run = ShardRun(tmp_path, shards, STATE, 1, None)
    calls = []

    def wait(futures, *_):
        calls[:] = calls or futures
        clock.now += 1
        calls[0].batches += 1
        if calls[0].batches == 70:
            calls[0].set_result(("made", (Made(1, 1.0, 4), b"any bytes")))

    monkeypatch.setattr(sharded, "wait", wait)
    sharded.carry_out(run, Silent(3), b"work", most=None, patience=60)
    assert [call.worker.kill.called for call in calls] == [False, True, True]
    assert run.schedule.given_up == dict.fromkeys(
        shards[1:], "its process finished no batch for 1 minutes and was ended (--stall-minutes 2: later)"
    )


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
