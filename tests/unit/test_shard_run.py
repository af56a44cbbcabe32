"""Giving out shards: what one more costs, what is done with workers that fail, and what rbk records status is told."""

import gc
import signal
import sys

import numpy as np
import pytest
from unfinished_states import STATE, Clock

from robustbench_kpca.evaluation import processes, shard_run
from robustbench_kpca.evaluation.processes import Processes
from robustbench_kpca.evaluation.shard_folder import read_state
from robustbench_kpca.evaluation.shard_run import ShardRun
from robustbench_kpca.evaluation.sharded import Sharded, Worker
from robustbench_kpca.evaluation.shards import Made, Smaller, plan_shards
from robustbench_kpca.records.differences import only
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.table import Table

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
    run = ShardRun(tmp_path, planned(3000), STATE, 1, lambda *news, **more: told.append(news), None, Clock())
    run.made = Counted()

    def one():
        run.finished(run.next(), Made(1, 2.0, 4), CONTENT)
        run.report({})

    counts = [instructions(one) for _ in range(3)]
    for _ in range(2500):
        one()
    assert instructions(one) == counts[-1]
    assert (len(states), told[-1]) == (1 + len(told), (2504, 40)), "and every one was told of"
    assert states[-1].measured == 2504
    assert states[-1].left == pytest.approx((40 - 2504) * 2.0)


def test_writing_the_state_takes_a_small_part_of_the_time(tmp_path, monkeypatch):
    clock, written = Clock(), []

    def write(folder, state):
        written.append(clock.now)
        clock.now += 0.1

    monkeypatch.setattr(shard_run, "write_state", write)
    monkeypatch.setattr(shard_run, "write_atomic", lambda path, content: None)
    run = ShardRun(tmp_path, planned(1000), STATE, 1, None, None, clock)
    for _ in range(1000):
        run.finished(run.next(), Made(1, 2.0, 4), CONTENT)
        run.report({})
        clock.now += 0.01
    assert 4 <= len(written) <= 7, "in ten seconds, where every one takes a tenth of a second"
    run.report({}, last=True)
    assert written[-1] == pytest.approx(clock.now - 0.1), "the last one is always written"


def test_the_order_in_which_shards_are_finished_changes_no_record(tmp_path):
    sums = []
    for order in (1, -1):
        (tmp_path / str(order)).mkdir()
        shards = planned(3)
        run = ShardRun(tmp_path / str(order), shards, STATE, 1, None, None)
        for _ in shards:
            run.next()
        for shard in shards[::order]:
            run.finished(shard, Made(1, 2.0, 4, (f"remark {shard.first}", "common")), CONTENT)
        sums.append(run.sum())
    assert sums[0] == sums[1]
    assert sums[0].remarks == ("remark 0", "common", "remark 1", "remark 2")


class Engine(Sharded):
    """Its workers do what a script says: shard -> kinds of answers, attempt by attempt; "made" where it says nothing.

    A worker whose answer was "crashed" crashes from then on, as after an error of CUDA.
    """

    def __init__(self, count, script=None):
        super().__init__(count)
        self.script, self.begun, self.ended, self.waits = script or {}, 0, [], []
        self.spoilt = set()

    def start(self):
        self.begun += 1
        return Worker(pid=self.begun)

    def order(self, worker, work, task):
        pass

    def news(self, seconds):
        self.waits.append(seconds)
        found = []
        for worker in list(self.workers):
            if not worker.ready:
                found.append((worker, "ready", ("here", worker.pid)))
            elif worker.shard is not None:
                found.append((worker, *self._answer(worker)))
        return found

    def _answer(self, worker):
        planned = self.script.get(worker.shard.first, [])
        kind = "crashed" if worker in self.spoilt else planned.pop(0) if planned else "made"
        if kind == "crashed":
            self.spoilt.add(worker)
        return kind, (Made(1, 1.0, 4), CONTENT) if kind == "made" else "why"

    def kill(self, worker):
        self.ended.append(worker.pid)

    def stop(self):
        pass


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr("robustbench_kpca.evaluation.schedule.PAUSES", (0.0, 0.0))


def carry_out(engine, count, folder):
    run = ShardRun(folder, planned(count), STATE, 1, None, None)
    engine._carry_out(run, b"work", Smaller(None, ()), 0)
    return run


def test_a_process_that_an_unforeseen_error_has_spoilt_spoils_no_other_shard(tmp_path, at_once):
    engine = Engine(2, {0: ["crashed"]})
    run = carry_out(engine, 8, tmp_path)
    run.require_complete()
    assert engine.ended == [1], "it was ended, and another one started"
    assert engine.begun == 3
    assert run.schedule.failures == {run.shards[0]: 1}


def test_after_a_foreseen_error_the_process_goes_on(tmp_path, at_once):
    engine = Engine(2, {0: ["failed", "failed"]})
    carry_out(engine, 8, tmp_path).require_complete()
    assert (engine.ended, engine.begun) == ([], 2)


class Busy(Engine):
    """The worker that failed a shard gets another one, which takes long."""

    def news(self, seconds):
        self.waits.append(seconds)
        [worker] = self.workers or [None]
        if not worker.ready:
            return [(worker, "ready", ("here", 1))]
        if len(self.waits) > 20:
            return [(worker, *self._answer(worker))]
        return [(worker, "failed", "why")] if worker.shard.first == 0 and len(self.waits) == 2 else []


def test_a_shard_that_waits_for_another_attempt_does_not_keep_this_process_busy(tmp_path, monkeypatch):
    """It is due, but no worker is idle: there is nothing to do but to wait for news."""
    monkeypatch.setattr("robustbench_kpca.evaluation.schedule.PAUSES", (1e-9, 1e-9))
    engine = Busy(1)
    monkeypatch.setattr("robustbench_kpca.evaluation.schedule.Schedule.next", _new_ones_first)
    carry_out(engine, 3, tmp_path).require_complete()
    assert engine.waits[4:20] == [0.5] * 16


def _new_ones_first(self):
    shard = self.waiting.popleft() if self.waiting else self.paused.pop()[-1] if self.paused else None
    if shard is not None:
        self.running.add(shard)
    return shard


def test_the_state_names_who_works_and_what_failed(tmp_path, at_once):
    engine = Engine(1, {1: ["failed"] * 3})
    seen = []
    engine.order = lambda worker, work, task: seen.append(read_state(tmp_path / "state.json"))
    carry_out(engine, 3, tmp_path)
    last = read_state(tmp_path / "state.json")
    assert list(last.failed.values()) == ["why"]
    assert (last.done, last.measured, last.running) == (2, 2, {})


def test_the_part_of_a_smaller_budget_is_found_in_place():
    names = ["b", "b", "a, 1", "c", "c", "c", "d"]
    outcomes = Outcomes.from_rows(
        Table("toy", "attack", {"sample": "str", "forwards": "int"}),
        [{"sample": name, "forwards": number} for number, name in enumerate(names)],
    )
    ids = ["b", "a, 1", "c", "d"]
    smaller = Smaller(outcomes, ids)
    for shard in [*plan_shards(ids, "key", 2), *plan_shards(ids, "key", 3)]:
        expected = only(outcomes, ids[shard.first : shard.last])
        assert smaller.of(shard).to_csv() == expected.to_csv()
        assert np.array_equal(smaller.of(shard)["forwards"], expected["forwards"])
    assert Smaller(None, ids).of(shard) is None


class Process:
    """Stands in for a process; notes what it was started with, and which signals were held back then."""

    def __init__(self, target, args, name):
        self.args, self.name = args, name

    def start(self):
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.fixture
def stand_in(monkeypatch):
    context = processes.multiprocessing.get_context("spawn")
    monkeypatch.setattr(type(context), "Process", Process)
    monkeypatch.setattr(processes, "START", "spawn")
    return Processes(2)


@pytest.mark.untyped  # its process is a stand-in
def test_a_new_process_uses_the_gpu_of_the_lost_one(stand_in):
    """Process k uses device k modulo their number, so the numbers of those at work must be 0 to N - 1."""
    for _ in range(2):
        stand_in.workers.append(stand_in.start())
    lost = stand_in.workers.pop(1)
    stand_in.workers.append(stand_in.start())
    assert [worker.process.args[1] for worker in stand_in.workers] == [0, lost.rank] == [0, 1]
    del stand_in.workers[0]
    assert stand_in.start().process.args[1] == 0


@pytest.mark.untyped  # its process is a stand-in
def test_ctrl_c_does_not_reach_a_process_that_starts(stand_in):
    """It would end with a traceback of its own: until it has loaded the package it cannot ignore the signal."""
    assert signal.SIGINT in stand_in.start().process.blocked
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
