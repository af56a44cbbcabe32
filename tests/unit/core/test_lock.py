"""Locks of files: one holder at a time, and nobody waits for a process that has ended."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.lock import holder_in, is_held, locked


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / ".lock"


def test_a_lock_is_held_and_given_back(path):
    with locked(path, wait=False):
        assert [file.name for file in path.parent.iterdir()] == [".lock"]
        assert is_held(path)
        with (
            pytest.raises(BadInputError, match=r"another process is writing .*process \d+ on "),
            locked(path, wait=False),
        ):
            pass
        assert is_held(path)
    assert not path.parent.exists(), "the folder was made for the lock"
    assert not is_held(path)


def test_a_killed_holder_holds_nothing(path):
    code = "import sys, time, pathlib; from robustbench_kpca._core.lock import locked\n"
    code += "with locked(pathlib.Path(sys.argv[1]), wait=False): print(flush=True); time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(BadInputError, match=f"process {other.pid}"), locked(path, wait=False):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert holder_in(path), "its file stays"
    assert not is_held(path)
    with locked(path, wait=False):
        assert is_held(path)


def test_those_that_wait_take_turns_though_each_deletes_the_file(path):
    turns, inside = [], []

    def hold():
        for _ in range(5):
            with locked(path, wait=True):
                inside.append(1)
                turns.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turns == [1] * 30
    assert not path.exists()


def test_without_locks_in_the_file_system_the_work_goes_on(path, monkeypatch):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.warns(UserWarning, match="flock"), locked(path, wait=False):
        assert path.exists()
    assert not path.exists()
