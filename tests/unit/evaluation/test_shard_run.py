"""Giving out shards: what one more costs, what is done with workers that fail, and what rbk records status is told."""

import gc
import signal
import sys
import time
from contextlib import closing
from functools import partial
from unittest.mock import Mock

import pytest
from unfinished_states import STATE

from robustbench_kpca._core.errors import EvaluationError, LostError
from robustbench_kpca.evaluation import processes, shard_run
from robustbench_kpca.evaluation.processes import Processes
from robustbench_kpca.evaluation.shard_run import ShardRun
from robustbench_kpca.records.shard_folder import read_state
from robustbench_kpca.records.shards import Made, plan_shards

CONTENT = b"any bytes"


def planned(count):
    return plan_shards([str(number) for number in range(count)], "key", 1)


def instructions(work):
    """Count what Python does in a call: loops over many shards are seen, however fast they are."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # what others do at a collection is no part of the work
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


class Counted(dict):
    """A dictionary that nobody may go through."""

    def _refused(self, *_):
        raise AssertionError("all finished shards are looked at")

    __iter__ = __or__ = __ror__ = items = keys = values = _refused


def test_the_work_for_one_more_shard_does_not_grow_with_the_finished_ones(tmp_path, monkeypatch):
    states = []
    monkeypatch.setattr(shard_run, "write_state", lambda folder, state: states.append(state))
    monkeypatch.setattr(shard_run, "write_atomic", lambda path, content: None)
    told = []
    monkeypatch.setattr(shard_run.shard_folder, "EVERY", 1e9)
    run = ShardRun(tmp_path, planned(3000), STATE, 1, lambda *news, **more: told.append(news))
    run.made = Counted()

    def one():
        run.finished(run.next(), Made(1, 2.0, 4), CONTENT)
        run.report({})

    counts = [instructions(one) for _ in range(3)]
    for _ in range(2500):
        one()
    assert instructions(one) == counts[-1]
    assert told[-1] == (2504, 40)
    assert len(states) == 1, "no time has passed"
    run.report({}, last=True)
    assert states[-1].left == pytest.approx((40 - 2504) * 2.0)


def test_the_order_in_which_shards_are_finished_changes_no_record(tmp_path):
    sums = []
    for order in (1, -1):
        (tmp_path / str(order)).mkdir()
        shards = planned(3)
        run = ShardRun(tmp_path / str(order), shards, STATE, 1, None)
        for _ in shards:
            run.next()
        for shard in shards[::order]:
            run.finished(shard, Made(1, 2.0, 4, (f"remark {shard.first}", "common")), CONTENT)
        sums.append(run.sum())
    assert sums[0] == sums[1]
    assert sums[0].remarks == ("remark 0", "common", "remark 1", "remark 2")


class Scripted:
    """Processes that do what a script says: shard -> kinds of answers, attempt by attempt; else "made"."""

    def __init__(self, monkeypatch, count, script=None, starts=(), seconds=0):
        self.engine, self.script, self.starts = Processes(count), script or {}, list(starts)
        self.begun, self.killed, self.seconds = [], [], seconds
        monkeypatch.setattr(processes, "Process", partial(Stand, self))


class Stand(processes.Process):
    """A process whose answer was "crashed" crashes from then on, as after an error of CUDA."""

    host, pid, pipe = "here", 1, Mock()

    def __init__(self, scripted, rank, make):
        scripted.begun.append(rank)
        self.scripted, self.begins = scripted, scripted.starts.pop(0) if scripted.starts else "well"
        self.spoilt = False

    def ready(self):
        if self.begins == "lost":
            raise LostError("ended with code 1")
        if self.begins == "error":
            raise OSError("no more processes")

    def make(self, work, shard, progress):
        time.sleep(self.scripted.seconds)
        planned = self.scripted.script.get(shard.first, [])
        kind = "crashed" if self.spoilt else planned.pop(0) if planned else "made"
        if kind == "lost":
            raise LostError("was killed by SIGKILL")
        self.spoilt = kind == "crashed"
        return kind, (Made(1, 1.0, 4), CONTENT) if kind == "made" else "why"

    def stop(self):
        pass

    def end(self, seconds):
        self.scripted.killed += [self] * (seconds == 0)


def carry(scripted, count, folder):
    run = ShardRun(folder, planned(count), STATE, 1, None)
    with closing(scripted.engine) as engine:
        engine.carry_out(run, b"work")
    return run


@pytest.mark.parametrize("kind", ["crashed", "lost"])
def test_a_process_that_is_lost_or_spoilt_spoils_no_other_shard(kind, tmp_path, monkeypatch):
    pool = Scripted(monkeypatch, 2, {0: [kind]})
    run = carry(pool, 8, tmp_path)
    run.require_complete()
    assert len(pool.killed) == 1, "it was ended, and another one started in its place, which says which GPU it uses"
    assert len(pool.begun) <= 3
    assert set(pool.begun) <= {0, 1}
    assert run.schedule.failures == {run.shards[0]: 1}


def test_errors_are_foreseen_and_named(tmp_path, monkeypatch):
    pool = Scripted(monkeypatch, 2, {0: ["failed", "failed"]})
    carry(pool, 8, tmp_path).require_complete()
    assert pool.killed == []
    assert len(pool.begun) <= 2
    carry(Scripted(monkeypatch, 1, {1: ["failed"] * 3}), 3, tmp_path)
    last = read_state(tmp_path)
    assert list(last.failed.values()) == ["why"]
    assert (last.done, last.running) == (2, {})


@pytest.mark.parametrize("starts", [["lost"] * 3, ["error"]])
def test_processes_that_cannot_start_end_the_run(starts, tmp_path, monkeypatch):
    with pytest.raises(EvaluationError, match=r"3 processes in a row could .*code 1|no process can be started"):
        carry(Scripted(monkeypatch, 1, starts=starts), 8, tmp_path)
    carry(Scripted(monkeypatch, 1, starts=["lost", "lost", "well"]), 8, tmp_path).require_complete()


def test_the_time_left_follows_from_finished_shards(tmp_path):
    told, shards = [], plan_shards([str(number) for number in range(40)], "key", 10)
    run = ShardRun(tmp_path, shards, STATE, 1, lambda *_, left, **__: told.append(left))
    for seconds in (0.0, 30.0):  # nothing is known of shards that no clock measures
        run.finished(run.next(), Made(1, seconds, 4), b"any bytes")
        run.report({})
    for _ in range(2):  # two workers are at work
        run.next()
    run.report({})
    alone = (STATE.samples - 20) * 30 / 20
    assert told == [None, None, alone, alone / 2]


class Started:
    """Stands in for a process; notes which signals were held back when it was started."""

    def __init__(self, target, args, name):
        pass

    def start(self):
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.untyped  # its process is a stand-in
def test_ctrl_c_does_not_reach_a_process_that_starts(monkeypatch):
    """It would end with a traceback of its own: until it has loaded the package it cannot ignore the signal."""
    monkeypatch.setattr(type(processes.multiprocessing.get_context("spawn")), "Process", Started)
    monkeypatch.setattr(processes, "START", "spawn")
    assert signal.SIGINT in processes.Process(0).process.blocked
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
