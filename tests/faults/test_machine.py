"""Faults of disk, clock and data, and two runs at once: a correct result, or one line and nothing half-written."""

import errno
import random
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from full_disk import full_disk
from test_faults import hidden, run, shards
from test_kills import begin, content, training

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.shards import SUFFIX


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_is_one_line_and_what_is_finished_is_kept(processes, toy, digits, tmp_path):
    run(toy, digits, tmp_path / "plain", 1)
    out = tmp_path / "out"
    out.mkdir()
    forkserver.ensure_running()  # the server that starts other processes is not limited
    with (
        full_disk(250),
        pytest.raises(EvaluationError, match=r"cannot write .*takes no file of this size.*free disk space"),
    ):
        run(toy, digits, out, processes)
    assert not [name for name in hidden(out) if name.endswith(".tmp")]
    assert not list(out.glob("*.record.json"))
    run(toy, digits, out, processes)
    assert content(out) == content(tmp_path / "plain")


def test_a_folder_that_becomes_read_only_is_one_line(toy, digits, tmp_path, monkeypatch):
    run(toy, digits, tmp_path / "plain", 1)
    out, real = tmp_path / "out", Path.replace

    def replace(path, target):
        if str(target).endswith(SUFFIX) and len(shards(out)) == 2:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(BadInputError, match=r"cannot write to folder .*read-only"):
            run(toy, digits, out)
    assert len(shards(out)) == 2
    assert not list(out.rglob("*.tmp"))
    run(toy, digits, out)
    assert content(out) == content(tmp_path / "plain")


def test_clocks_that_jump_change_nothing(toy, digits, tmp_path, monkeypatch):
    """Those of this process and of the others: back and forth by months, at every look."""
    run(toy, digits, tmp_path / "plain", 1)
    out, drawn, real = tmp_path / "out", random.Random(0), time.time
    monkeypatch.setattr(time, "time", lambda: real() + drawn.uniform(-1e7, 1e7))
    (toy / "clock").touch()
    torch.save(digits.form.tensor(digits.image(13)), toy / "poison.pt")
    with pytest.raises(EvaluationError, match="samples 12 to 15"):
        run(toy, digits, out)
    (toy / "poison.pt").unlink()
    assert len(shards(out)) == 5
    assert main(["records", "status", str(out)]) == 0
    run(toy, digits, out)
    assert content(out) == content(tmp_path / "plain")


@pytest.mark.slow
def test_two_trainings_at_once_make_one(recipe, tmp_path):
    assert main(training(recipe, 0, tmp_path / "plain")) == 0
    both = [begin(training(recipe, 0, tmp_path / "out"), tmp_path / f"said{number}") for number in (1, 2)]
    for process in both:
        process.join()
    said = "".join((tmp_path / f"said{number}").read_text() for number in (1, 2))
    assert sorted(process.exitcode for process in both) in ([0, 0], [0, 2]), said
    assert content(tmp_path / "out") == content(tmp_path / "plain")
