"""Every fault ends in the outcomes of an undisturbed run, byte for byte, or in a clear error (docs/run_at_scale.md)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import test_kills
import torch
from stand_ins import tables
from torch import nn

from robustbench_kpca import evaluate, load_data
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.shard_folder import lock_of, stem_of
from robustbench_kpca.records.shards import SUFFIX
from robustbench_kpca.records.unfinished import unfinished

ATTACK = {"protocol": "pgd20-linf-4_255", "steps": 5, "keep_adversarial": 9}
GRID = {"protocol": "noise-blur-contrast", "corruptions": ["gaussian_noise", "contrast"], "severities": [1, 3]}
HOW = {"batch_size": 4, "audit": False}


def run(toy, digits, out, processes=2, **asked):
    return evaluate(f"{toy}/toy.py:build", digits, out=out, processes=processes, **{**HOW, **ATTACK, **asked})


def hidden(folder):
    return [path.name for path in folder.rglob(".*")]


def shards(folder):
    return sorted(folder.rglob(f"*{SUFFIX}"))


@pytest.mark.parametrize("asked", [ATTACK, GRID, {"protocol": "clean"}], ids=["attack", "grid", "clean"])
def test_processes_make_the_record_of_one(asked, toy, digits, tmp_path):
    told = []
    records = [
        evaluate(
            f"{toy}/toy.py:build", digits, out=tmp_path / str(processes), processes=processes,
            progress=lambda done, total, **news: told.append((done, total, news)), **HOW, **asked,
        )
        for processes in (1, 3)
    ]  # fmt: skip
    done, total, news = told[-1]
    assert done == total == len(digits) * (5 if asked is GRID else 1)
    assert news["stage"].startswith("6 of 6 shards")
    assert tables(tmp_path / "1") == tables(tmp_path / "3")
    one, other = (record.model_dump(exclude={"created", "seconds"}) for record in records)
    assert one == other
    assert not hidden(tmp_path / "3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "asked"),
    [
        (
            "symvit_shapes",
            "shapes",
            {"protocol": "noise-blur-contrast", "corruptions": ["contrast"], "severities": [2]},
        ),
        ("symvit_shapes", "shapes", {"protocol": "segpgd20-linf-1_255", "steps": 2}),
        ("softmax_lm_tiny", "grammar", {"protocol": "clean"}),
        ("softmax_lm_tiny", "grammar", {"protocol": "random-swap-words-1.5"}),
    ],
)
def test_processes_make_the_record_of_one_for_every_task(model, data, asked, tmp_path):
    samples = load_data(data, limit=6)
    for number in (1, 2):
        out = tmp_path / str(number)
        evaluate(model, samples, out=out, processes=number, batch_size=2, audit=False, **asked)
    assert tables(tmp_path / "1") == tables(tmp_path / "2")


def test_killed_processes_lose_nothing(toy, digits, tmp_path, monkeypatch):
    run(toy, digits, tmp_path / "plain", 1)
    kills = (1, 5, 12, 20)  # passes: while the model is identified, and in the middle of shards
    for passes in kills:
        (toy / f"kill-{passes}").touch()
    # One shard may meet all of them where the second process begins late: it has one attempt more than there are kills.
    monkeypatch.setattr("robustbench_kpca.evaluation.shard_run.ATTEMPTS", len(kills) + 1)
    run(toy, digits, tmp_path / "killed")
    assert not list(toy.glob("kill-*")), "all of them were killed"
    assert tables(tmp_path / "plain") == tables(tmp_path / "killed")
    assert not hidden(tmp_path / "killed")


def test_a_poisoned_shard_is_given_up_and_the_others_are_kept(toy, digits, tmp_path, capsys):
    run(toy, digits, tmp_path / "plain", 1)
    torch.save(digits.form.tensor(digits.image(13)), toy / "poison.pt")
    with pytest.raises(EvaluationError, match=r"1 of 6 shards .*samples 12 to 15: its process was killed by SIGKILL"):
        run(toy, digits, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.json")), "no record"
    assert len(shards(tmp_path / "out")) == 5
    assert main(["records", "status", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1].split()[-6:] == ["5", "0", "0", "1", "-", "stopped"]
    assert "SIGKILL" in shown.err
    (toy / "poison.pt").unlink()
    stamps = {path: path.stat().st_mtime_ns for path in shards(tmp_path / "out")}
    (toy / "slow").touch()
    started = time.monotonic()
    run(toy, digits, tmp_path / "out")
    assert time.monotonic() - started < 20
    assert stamps
    assert tables(tmp_path / "plain") == tables(tmp_path / "out")


def test_finished_shards_are_kept_and_damaged_ones_are_made_again(toy, digits, tmp_path, monkeypatch):
    run(toy, digits, tmp_path / "plain", 1)
    torch.save(digits.form.tensor(digits.image(23)), toy / "poison.pt")
    with pytest.raises(EvaluationError):
        run(toy, digits, tmp_path / "out")
    (toy / "poison.pt").unlink()
    kept = shards(tmp_path / "out")
    kept[1].write_bytes(kept[1].read_bytes()[:-7])
    told = []
    monkeypatch.setattr("robustbench_kpca.evaluation.shard_run.Schedule.finished", lambda self, shard: (
        told.append(shard.first), self.running.remove(shard)
    ))  # fmt: skip
    run(toy, digits, tmp_path / "out")
    assert sorted(told) == [4, 20], "the damaged one and the one that was missing"
    assert tables(tmp_path / "plain") == tables(tmp_path / "out")


def test_a_changed_specification_uses_no_old_shard(toy, digits, tmp_path):
    torch.save(digits.form.tensor(digits.image(23)), toy / "poison.pt")
    with pytest.raises(EvaluationError):
        run(toy, digits, tmp_path / "out")
    (toy / "poison.pt").unlink()
    for changed in ({"seed": 1}, {"batch_size": 8}, {"steps": 4}):
        run(toy, digits, tmp_path / "plain", 1, **changed)
        run(toy, digits, tmp_path / "out", **changed)
    assert tables(tmp_path / "plain") == tables(tmp_path / "out")
    assert len(unfinished(tmp_path / "out")) == 1


def test_a_second_run_of_one_record_is_refused(toy, digits, tmp_path):
    torch.save(digits.form.tensor(digits.image(23)), toy / "poison.pt")
    with pytest.raises(EvaluationError):
        run(toy, digits, tmp_path / "out")
    [folder] = [one.folder for one in unfinished(tmp_path / "out")]
    lock = lock_of(folder.parent, stem_of(folder))
    program = "import sys, time, pathlib; from robustbench_kpca._core.lock import locked\n"
    program += "with locked(pathlib.Path(sys.argv[1]), wait=False): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        try:
            assert unfinished(tmp_path / "out")[0].active
            with pytest.raises(BadInputError, match="another process is writing"):
                run(toy, digits, tmp_path / "out")
        finally:
            other.kill()


class Local(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.hook = lambda x: x

    def forward(self, x):
        return x.flatten(1)[:, :10] * self.weight


def test_a_model_that_cannot_be_sent_is_refused_by_name(digits):
    with pytest.raises(BadInputError, match="model 'Local' or its data cannot be sent to another process"):
        evaluate(Local().eval(), digits, processes=2, protocol="clean", **HOW)


RBK = [sys.executable, "-m", "robustbench_kpca"]


def command(toy, out):
    asked = ["-m", f"{toy}/toy.py:build", "--data", "digits", "--limit", "200", "--batch-size", "4", "--audit", "none"]
    return ["eval", *asked, "-p", "pgd20-linf-4_255", "--set", "steps=5", "--device", "cpu", "-q", "-o", str(out)]


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def begin_quickly(arguments, errors):
    """Start the first process from one that has imported everything."""
    process = test_kills.begin(arguments, errors)
    return process.pid, lambda: (process.join(), process.exitcode)[1]


def begin(arguments, errors):
    with errors.open("w") as file:
        process = subprocess.Popen([*RBK, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=file)
    return process.pid, process.wait


@pytest.mark.parametrize("start", [begin_quickly, pytest.param(begin, marks=pytest.mark.slow)])
def test_the_first_process_may_be_told_to_stop_or_be_killed(start, toy, tmp_path):
    """SIGTERM, then SIGKILL, then a run to the end: the outcomes are those of one plain process."""
    out, errors = tmp_path / "out", tmp_path / "errors"
    assert main(command(toy, tmp_path / "plain")) == 0
    (toy / "slow").touch()
    for blow, code in [(signal.SIGTERM, 3), (signal.SIGKILL, -signal.SIGKILL)]:
        before = len(shards(out))
        pid, wait = start([*command(toy, out), "--processes", "2"], errors)
        wait_for(lambda before=before: len(shards(out)) > before and any(one.running for one in unfinished(out)))
        ours = [one.pid for one in unfinished(out)[0].running.values()]
        assert ours
        os.kill(pid, blow)
        started = time.monotonic()
        assert wait() == code, errors.read_text()
        wait_for(lambda ours=ours: not any(map(alive, ours)), 30)
        assert time.monotonic() - started < 30
        if blow == signal.SIGTERM:
            said = errors.read_text().splitlines()[-1]
            assert said.startswith("rbk: error: interrupted")
            assert "goes on with: rbk eval" in said
        assert not list(out.glob("*.json"))
    assert len(shards(out)) >= 2
    (toy / "slow").unlink()
    assert main([*command(toy, out), "--processes", "2"]) == 0
    assert tables(tmp_path / "plain") == tables(out)
    assert not hidden(out)
