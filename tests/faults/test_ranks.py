"""Evaluations under torchrun make the record of one process; a rank that dies ends them in a clear error."""

import multiprocessing
import os
import socket
import subprocess
import sys
from multiprocessing import forkserver
from multiprocessing.connection import Listener

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.evaluation import ranks
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.ranks import Ranks
from robustbench_kpca.evaluation.unfinished import unfinished
from robustbench_kpca.records.record import load_record

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "robustbench_kpca"]


def command(toy, out):
    asked = ["-m", f"{toy}/toy.py:build", "--data", "digits", "--limit", "24", "--batch-size", "4", "--audit", "none"]
    return ["eval", *asked, "-p", "pgd20-linf-4_255", "--set", "steps=5", "--device", "cpu", "-q", "-o", str(out)]


def tables(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.outcomes.csv.xz")}


def record(folder):
    [path] = folder.glob("*.record.json")
    return load_record(path).model_dump(exclude={"created", "seconds"})


def environment(rank, port):
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test",
    }  # fmt: skip


def other(arguments, surroundings):
    """Be the second rank."""
    os.environ |= surroundings
    sys.exit(main(arguments))


@pytest.fixture
def second(monkeypatch):
    """Begin the second rank; this process becomes the first."""
    forkserver.ensure_running()  # else later tests would have processes with the variables of torchrun
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in environment(0, port).items():
        monkeypatch.setenv(name, value)
    context = multiprocessing.get_context("forkserver")
    started = []

    def begin(arguments):
        started.append(context.Process(target=other, args=(arguments, environment(1, port))))
        started[-1].start()
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.join()


def test_two_ranks_make_the_record_of_one_process(second, toy, tmp_path, monkeypatch):
    with monkeypatch.context() as plain:
        plain.delenv("TORCHELASTIC_RUN_ID")
        assert main(command(toy, tmp_path / "plain")) == 0
    (toy / "slow").touch()  # so that both have work
    process = second(command(toy, tmp_path / "out"))
    taught = []
    order = Ranks.order
    monkeypatch.setattr(Ranks, "order", lambda self, worker, *rest: (
        taught.append(worker.rank), order(self, worker, *rest)
    ))  # fmt: skip
    assert main(command(toy, tmp_path / "out")) == 0
    assert set(taught) == {0, 1}, "both made shards"
    process.join(60)
    assert process.exitcode == 0
    assert tables(tmp_path / "plain") == tables(tmp_path / "out")
    assert record(tmp_path / "plain") == record(tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))


def test_a_rank_that_is_killed_ends_the_run_in_one_line_and_finished_shards_are_kept(second, toy, tmp_path, capsys):
    (toy / "kill-rank-1").touch()
    second(command(toy, tmp_path))
    assert main(command(toy, tmp_path)) == 3
    assert "rank 1 of 2 is gone" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.glob("*.json"))
    assert 0 <= unfinished(tmp_path)[0].done < 6


@pytest.mark.slow
def test_torchrun_makes_the_record_of_one_process_even_after_a_rank_was_killed(toy, tmp_path):
    assert main(command(toy, tmp_path / "plain")) == 0
    for name in ("slow", "kill-rank-1"):
        (toy / name).touch()
    told = subprocess.run(TORCHRUN + command(toy, tmp_path / "out"), capture_output=True, text=True)
    assert told.returncode != 0
    assert "rank 1 of 2 is gone" in told.stderr or "goes on with: rbk eval" in told.stderr, told.stderr
    assert not list((tmp_path / "out").glob("*.json"))
    (toy / "kill-rank-1").unlink()
    subprocess.run(TORCHRUN + command(toy, tmp_path / "out"), check=True, capture_output=True)
    assert tables(tmp_path / "plain") == tables(tmp_path / "out")
    assert record(tmp_path / "plain") == record(tmp_path / "out")


def test_torchrun_is_asked_for_by_being_there():
    with pytest.raises(BadInputError, match="torchrun -m robustbench_kpca eval"):
        Ranks()
    with pytest.raises(BadInputError, match="--nproc-per-node says how many"):
        RunOptions(executor="torchrun", processes=2)


def test_a_connection_of_a_stranger_is_left_out():
    """Such as one of a program that looks for open ports."""
    with Listener(("127.0.0.1", 0), authkey=b"key") as listener:
        with socket.create_connection(listener.address):
            pass
        assert ranks._accepted(listener) == []


def test_a_rank_that_cannot_reach_the_first_one_says_so_in_one_line(monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setattr(ranks, "_agree", lambda offer: ("127.0.0.1", port, b"key"))
    for name, value in environment(1, port).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EvaluationError, match=rf"rank 1 cannot reach the first one at 127.0.0.1:{port} .*refused"):
        ranks.follow()
