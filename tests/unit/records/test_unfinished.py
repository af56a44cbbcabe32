"""What `rbk records status` tells of unfinished records; none of it needs torch."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from unfinished_states import STATE, Clock

from robustbench_kpca._core.lock import locked
from robustbench_kpca.cli.main import main
from robustbench_kpca.records import shard_folder
from robustbench_kpca.records.shard_folder import (
    Running,
    folder_of,
    lock_of,
    read_state,
    telling,
    tidy,
    write_state,
)

DEAD = "rbk: process 999999999 on a host\n"


@pytest.fixture
def clock():
    return Clock()


def test_states_survive_a_round_trip_and_damage_is_no_state(tmp_path):
    state = replace(STATE, running={"a": Running("node", 3, "now", 1, 2, 0.5)}, failed={"b": "why"}, left=3.0)
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    for damage in ("", "{", "[]", '{"running": 3}', '{"running": {"a": 1}}', '{"running": {}, "model": "x"}'):
        (tmp_path / "state.json").write_text(damage)
        assert read_state(tmp_path) is None
    write_state(tmp_path / "gone", state)
    assert not (tmp_path / "gone").exists(), "of a finished record nothing is written"


def test_status_tells_of_workers_and_of_one_process(tmp_path, capsys, clock, monkeypatch):
    folder, small = (folder_of(tmp_path, stem, "0123456789") for stem in ("vit.clean", "cnn.clean"))
    folder.mkdir()
    running = {"00000000-00000010-ab.shard": Running("node7", 33, "2025-01-01T00:00:00+00:00", 4, 10, 2.0)}
    write_state(folder, replace(STATE, running=running, done=14, rows=40, left=130.0))
    (folder / "00000010-00000020-ab.shard").touch()
    tell = telling(None, {small: replace(STATE, model="cnn", shards=1)}, clock)
    tell(2, 40)
    assert not small.exists(), "short work leaves no trace"
    clock.now += shard_folder.EVERY
    tell(10, 40)
    with locked(lock_of(tmp_path, "vit.clean"), wait=False), locked(lock_of(tmp_path, "cnn.clean"), wait=False):
        assert main(["records", "status", str(tmp_path)]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert main(["records", "status", str(tmp_path), "--json"]) == 0
        found = {one["record"]: one for one in json.loads(capsys.readouterr().out)["unfinished"]}
    alone, sharded = (next(line for line in shown if line.startswith(name)).split() for name in ("cnn ", "vit "))
    assert sharded == "vit digits test clean 35 % 1 1 2 0 130 s running".replace("130 s", "2 min").split()
    assert alone == ["cnn", "digits", "test", "clean", "25", "%", "0", "1", "0", "0", "8", "s", "running"]
    worker = next(line for line in shown if "node7 33" in line)
    assert worker.split()[-2:] == ["4/10", "2"]
    assert found["vit.clean"]["seconds_left"] == 130
    assert found["cnn.clean"]["running"]["all samples"]["per_second"] == 4
    assert found["cnn.clean"]["running"]["all samples"]["pid"] == os.getpid()
    assert main(["records", "status", str(tmp_path)]) == 0
    assert [line.split()[-2:] for line in capsys.readouterr().out.splitlines()[1:]] == [["-", "stopped"]] * 2


def test_what_was_left_beside_a_finished_record_goes(tmp_path):
    """The process was killed between its record and its tidying up; other records are left alone."""
    folder, other = (folder_of(tmp_path, stem, "0123456789") for stem in ("vit.clean", "vit.clean.more"))
    kept = [tmp_path / "vit.clean.record.json", tmp_path / ".vit.clean.more.lock", other]
    for path in (folder, other):
        path.mkdir()
    lock_of(tmp_path, "vit.clean").write_text(DEAD)
    for path in kept[:2]:
        path.touch()
    (tmp_path / ".rbk-0123.tmp").write_bytes(b"half")
    with locked(lock_of(tmp_path, "vit.clean"), wait=False):
        tidy(tmp_path, "vit.clean")
        assert folder.exists(), "somebody works on it again"
    tidy(tmp_path, "vit.clean")
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_record_that_is_finished_meanwhile_is_no_error(tmp_path, monkeypatch):
    """Its folder is seen first, and is gone when somebody looks into it."""
    for number in range(3):
        folder_of(tmp_path, f"vit{number}.clean", "0123456789").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith(".shards"):
            shutil.rmtree(path, ignore_errors=True)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert main(["records", "status", str(tmp_path)]) == 0
