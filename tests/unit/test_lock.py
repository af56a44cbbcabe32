"""Locks by link and rename: one holder at a time, and exactly one winner where a holder is gone."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from robustbench_kpca._core import lock as locks
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._core.lock import Holder, Lock, holder_of, locked
from robustbench_kpca._core.owner import Owner, place

ELSEWHERE = Owner("node7", "00000000", 4321, "99")


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(locks, "LOOK", 0.005)
    monkeypatch.setattr(locks, "BEAT", 0.02)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / ".lock"


def leave(path, owner, number=0):
    """Write a lock file as a process that is gone, or elsewhere, has left it."""
    path.parent.mkdir(exist_ok=True)
    holder = Holder("abcd0123", "2025-01-01T00:00:00+00:00", owner)
    content = json.dumps(asdict(holder)).encode() + b"\n%012d\n" % number
    path.with_name("new").write_bytes(content)
    path.with_name("new").replace(path)  # at once: nobody reads half of it


def gone():
    """Return a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    owner = Owner("here", place(), process.pid, "1")
    process.wait()
    return owner


def names(path):
    return [one.name for one in path.parent.iterdir()] if path.parent.exists() else []


def test_it_is_held_and_given_back(path):
    with locked(path, wait=False) as lock:
        assert names(path) == [".lock"], "no other file remains"
        assert holder_of(path).owner == Owner.here()
        with pytest.raises(BadInputError, match=rf"another process is writing .*process {os.getpid()} on "):
            Lock(path).acquire(wait=False)
        first = path.read_bytes()
        while path.read_bytes() == first:  # the number rises
            time.sleep(0.01)
        lock.require()
    assert names(path) == []
    assert holder_of(path) is None


def test_another_holder_may_delete_the_folder_that_was_new_for_it(path, monkeypatch):
    acquire, tries = Lock.acquire, []

    def too_late(lock, *, wait):
        tries.append(wait)
        if len(tries) == 1:
            path.parent.rmdir()
        acquire(lock, wait=wait)

    monkeypatch.setattr(Lock, "acquire", too_late)
    path.parent.mkdir()
    with locked(path, wait=False):
        assert names(path) == [".lock"]
    assert len(tries) == 2
    assert not path.parent.exists()


def test_a_killed_holder_is_replaced_at_once(path):
    code = "import sys, time, pathlib; from robustbench_kpca._core.lock import locked\n"
    code += "with locked(pathlib.Path(sys.argv[1]), wait=False): print(flush=True); time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(BadInputError, match=f"process {other.pid}"):
            Lock(path).acquire(wait=False)
        other.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays as a zombie
        with locked(path, wait=False):
            assert holder_of(path).owner.pid == os.getpid()
    assert names(path) == []


def test_the_number_of_a_process_may_be_used_again(path):
    leave(path, replace(Owner.here(), born="1"))
    with locked(path, wait=False):
        assert names(path) == [".lock"]


def test_a_holder_elsewhere_that_shows_no_sign_of_life_is_replaced(path):
    leave(path, ELSEWHERE)
    started = time.monotonic()
    with locked(path, wait=False):
        assert time.monotonic() - started >= locks.LOOKS * locks.LOOK
    assert names(path) == []


@pytest.mark.parametrize("jump", [1e9, -1e9])
def test_no_clock_makes_a_holder_elsewhere_old(path, monkeypatch, jump):
    """Neither the clock of this machine nor the times of the file count, only that the number changes."""
    leave(path, ELSEWHERE)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + jump)
    done = threading.Event()

    def beat():
        number = 0
        while not done.wait(20 * locks.LOOK):
            number += 1
            leave(path, ELSEWHERE, number)
            os.utime(path, (1, 1))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(BadInputError, match="process 4321 on node7"):
            Lock(path).acquire(wait=False)
    finally:
        done.set()
        thread.join()
    assert names(path) == [".lock"]


def test_a_machine_that_sleeps_takes_nothing_over(path, monkeypatch):
    """Looks are counted, not seconds: an hour between two of them is one look."""
    leave(path, ELSEWHERE)
    looks = []
    monkeypatch.setattr(locks.time, "monotonic", lambda: 3600.0 * len(looks))

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == locks.LOOKS - 1:
            leave(path, ELSEWHERE, 1)

    monkeypatch.setattr(locks.time, "sleep", sleep)
    with pytest.raises(BadInputError):
        Lock(path).acquire(wait=False)


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 9, b'{"token": 1}\n'])
def test_a_damaged_lock_is_replaced(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with locked(path, wait=False):
        assert names(path) == [".lock"]


def compete(path, count):
    """Let threads, each as if it were a process of its own, try to get a lock; who has it keeps it until all tried."""
    won, refused = [], []

    def one():
        lock = Lock(path)
        try:
            lock.acquire(wait=False)
        except BadInputError:
            refused.append(lock)
            return
        won.append(lock)
        until = time.monotonic() + 20
        while len(refused) + len(won) < count and time.monotonic() < until:
            time.sleep(0.005)
        lock.release()

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(won), len(refused)


def test_many_at_once_have_one_winner(path):
    """Of a lock that is free, of one whose holder is gone, and of one whose holder was being replaced."""
    path.parent.mkdir()
    owner = gone()
    for stale in (None, owner, ELSEWHERE):
        for claim in (None, owner):
            if stale is not None:
                leave(path, stale)
            if claim is not None:
                leave(path.with_name(".lock.abcd0123"), claim)
            assert compete(path, 6) == (1, 5)
            assert names(path) == []


def test_claims_of_killed_processes_do_not_stay(path):
    with locked(path, wait=False):
        leave(path.with_name(".lock.00112233"), gone())
        leave(path.with_name(".lock.44556677"), ELSEWHERE)
    assert names(path) == [".lock.44556677"]


def test_those_that_wait_take_turns(path):
    turns, inside = [], []

    def one():
        with locked(path, wait=True):
            inside.append(1)
            turns.append(len(inside))
            time.sleep(0.005)
            inside.pop()

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turns == [1] * 6


def test_who_was_replaced_notices_and_deletes_nothing(path):
    lock = Lock(path)
    path.parent.mkdir()
    lock.acquire(wait=False)
    leave(path, ELSEWHERE)
    path.with_name("other").write_bytes(path.read_bytes())
    path.with_name("other").replace(path)  # another machine took it over
    while not lock.lost:
        time.sleep(0.01)
    with pytest.raises(EvaluationError, match="took over"):
        lock.require()
    lock.release()
    assert Holder.read(path.read_bytes()).owner == ELSEWHERE
    assert names(path) == [".lock"]


def test_without_links_a_new_file_does(path, monkeypatch):
    def link(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    with locked(path, wait=False):
        with pytest.raises(BadInputError):
            Lock(path).acquire(wait=False)
        assert names(path) == [".lock"]
    assert names(path) == []
    leave(path, gone())
    with locked(path, wait=False):
        pass
    assert names(path) == []


def test_a_lost_reply_of_the_file_server_is_no_loss(path, monkeypatch):
    """Over NFS `link` may have worked although it reports an error (link(2), `BUGS` of open(2))."""
    real = os.link

    def link(*names):
        real(*names)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", link)
    with locked(path, wait=False):
        assert names(path) == [".lock"]


def test_a_forked_process_gives_nothing_back(path):
    with locked(path, wait=False) as lock:
        lock.me = replace(lock.me, owner=replace(lock.me.owner, pid=1))
        lock.release()
        assert path.exists()
        lock.me = replace(lock.me, owner=Owner.here())
