"""What `rbk records status` tells of unfinished records, and what `clean` deletes; none of it needs torch."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from unfinished_states import STATE, Clock

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.lock import locked
from robustbench_kpca.cli.main import main
from robustbench_kpca.records import shard_folder
from robustbench_kpca.records.shard_folder import (
    Running,
    folder_of,
    lock_of,
    next_attempt,
    read_state,
    telling,
    tidy,
    write_state,
)
from robustbench_kpca.records.unfinished import delete, leftovers

DEAD = "rbk: process 999999999 on a host\n"


@pytest.fixture
def clock():
    return Clock()


def test_states_survive_a_round_trip_and_damage_is_no_state(tmp_path):
    state = replace(STATE, running={"a": Running("node", 3, "now", 1, 2, 0.5)}, failed={"b": "why"}, left=3.0)
    write_state(tmp_path, state)
    assert replace(read_state(tmp_path), told="") == state
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
        assert not leftovers(tmp_path, everything=True)
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


def test_a_later_attempt_counts_whatever_the_clock_says(tmp_path):
    """The shards of another environment are stale; which attempt was the last is counted, not dated."""
    first, later = (folder_of(tmp_path, "vit.clean", key) for key in ("a" * 10, "b" * 10))
    for folder in (first, later):
        attempt = next_attempt(folder)
        folder.mkdir()
        write_state(folder, replace(STATE, attempt=attempt))
    os.utime(first, (2**32, 2**32))
    os.utime(later, (0, 0))
    assert [each.path for each in leftovers(tmp_path)] == [first]
    assert next_attempt(first) == 3


def test_clean_deletes_what_killed_processes_left(tmp_path, capsys):
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / ".a.lock").write_text(DEAD)
    (folder / ".rbk-0123.tmp").write_bytes(b"half")
    kept = [folder / ".rbk-4567.tmp", folder / "a.partial", folder / "notes.lock"]
    for path in kept:
        path.touch()
    shards = folder_of(tmp_path / "other", "vit.clean", "0123456789")
    shards.mkdir(parents=True)
    assert main(["records", "clean", str(tmp_path), "--dry-run"]) == 0
    assert len(list(folder.iterdir())) == 5
    assert capsys.readouterr().err.count("would delete") == 3
    assert main(["records", "clean", str(tmp_path)]) == 0
    assert sorted(folder.iterdir()) == sorted(kept)
    assert not shards.exists(), "nobody knows what it is of"


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


def test_what_has_been_taken_up_again_is_not_deleted(tmp_path):
    folder = folder_of(tmp_path, "vit.clean", "0123456789")
    folder.mkdir()
    write_state(folder, STATE)
    [found] = leftovers(tmp_path, everything=True)
    with (
        locked(lock_of(tmp_path, "vit.clean"), wait=False),
        pytest.raises(BadInputError, match="another process is writing"),
    ):
        delete(found)
    assert folder.exists()
    delete(found)
    assert not folder.exists()
    delete(found)  # another process was faster


def test_locks_of_other_programs_are_not_ours_to_delete(tmp_path):
    """Their names end alike; what is in them says whose they are."""
    names = [".block", ".yarn.lock", ".terraform.lock.00112233", ".lock"]
    for name in names:
        (tmp_path / name).write_text("of another program")
    assert main(["records", "clean", str(tmp_path), "--all"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_what_cannot_be_deleted_is_kept_in_one_line(tmp_path, capsys, monkeypatch):
    folder = folder_of(tmp_path, "vit.clean", "0123456789")
    folder.mkdir()
    write_state(folder, STATE)

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", refuse)
    assert main(["records", "clean", str(tmp_path), "--all"]) == 0
    assert "kept .vit.clean.01234567.shards: cannot write to folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "clean"])
def test_a_record_that_is_finished_meanwhile_is_no_error(command, tmp_path, monkeypatch):
    """Its folder is seen first, and is gone when somebody looks into it."""
    for number in range(3):
        folder_of(tmp_path, f"vit{number}.clean", "0123456789").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith(".shards"):
            shutil.rmtree(path, ignore_errors=True)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert main(["records", command, str(tmp_path)]) == 0


def test_no_number_of_waiting_shards_is_negative(tmp_path, capsys):
    """A shard was finished after the state was written."""
    folder = folder_of(tmp_path, "vit.clean", "0123456789")
    folder.mkdir()
    write_state(folder, replace(STATE, running={"b.shard": Running("node7", 33, "2025-01-01T00:00:00+00:00", 4, 10)}))
    for number in range(STATE.shards):
        (folder / f"{number}.shard").touch()
    with locked(lock_of(tmp_path, "vit.clean"), wait=False):
        assert main(["records", "status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unfinished"][0]["waiting"] == 0
