"""The scripts of the workflow that checks an entry, driven from a bare clone, with code that is not ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from forging import saved
from safetensors.torch import save_file

from robustbench_kpca import load_data, load_record
from robustbench_kpca._core.files import sha256
from robustbench_kpca.cli.main import main

ROOT = Path(__file__).parents[2]
ENTRY = ROOT / ".github" / "entry"
NET = """
import os, sys
from torch import nn
print("::error::accepted", flush=True)
print("::set-output name=line::verdict=accepted rows=298 differing=0", flush=True)
{more}
def build():
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 10))
"""
CARD = """board = "open/small"
title = "A line"
by = "A. Newcomer"
model = "net.py:build"
weights = "{weights}"
sha256 = "{digest}"
licence = "MIT"
parameters = 490
attention = "none"
training = "none"
adversarial = false
"""


def git(*words, cwd):
    who = ("-c", "user.name=A", "-c", "user.email=a@a")
    done = subprocess.run(["git", *who, *words], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def work(tmp_path):
    """A clone of a bare repository: two entries, a workflow, and a branch of an entrant."""
    git("init", "-q", "--bare", "-b", "main", "bare", cwd=tmp_path)
    git("clone", "-q", "bare", "work", cwd=tmp_path)
    work = tmp_path / "work"
    for name in ("submissions/other/entry.toml", ".github/workflows/entry.yml"):
        put(work, name, 'by = "Somebody"\n')
    git("checkout", "-q", "-b", "main", cwd=work)
    commit(work)
    git("push", "-q", "origin", "main", cwd=work)
    git("checkout", "-q", "-b", "entrant", cwd=work)
    return work


def put(work, name, text):
    path = work / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def commit(work):
    git("add", "-A", cwd=work)
    git("commit", "-q", "-m", "entry", cwd=work)


def taken(work):
    commit(work)
    git("push", "-q", "origin", "entrant", cwd=work)
    words = ["bash", str(ENTRY / "take.sh"), "main", "entrant", str(work / "taken")]
    return subprocess.run(words, cwd=work.parent / "bare", capture_output=True, text=True)


def test_one_folder_is_taken_and_nothing_else(work):
    put(work, "submissions/mine/entry.toml", 'by = "Me"\n')
    put(work, "submissions/mine/records/a.record.json", "{}")
    done = taken(work)
    assert (done.returncode, done.stdout) == (0, "mine\n")
    files = {path.relative_to(work / "taken").as_posix() for path in (work / "taken").rglob("*") if path.is_file()}
    assert files == {"mine/entry.toml", "mine/records/a.record.json"}


REFUSED = {
    "workflow": (".github/workflows/entry.yml", "outside submissions/NAME"),
    "another folder": ("submissions/other/entry.toml", "changes the folder"),
    "own spot check": ("submissions/mine/spot-check.json", "which only a check here writes"),
    "way out": ("submissions/mine/a b.json", "outside submissions/NAME"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_edits_more_is_refused_in_one_line(work, case):
    name, expected = REFUSED[case]
    if case == "workflow":
        put(work, "submissions/mine/entry.toml", 'by = "Me"\n')
    put(work, name, 'by = "Me"\n')
    done = taken(work)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert expected in done.stderr


def test_links_are_refused(work):
    put(work, "submissions/mine/entry.toml", 'by = "Me"\n')
    (work / "submissions/mine/link").symlink_to("/etc/passwd")
    assert "has links" in taken(work).stderr


def again(folder, **variables):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {"PATH": path, "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(ROOT), "GITHUB_TOKEN": "secret"}
    settings |= {"OMP_NUM_THREADS": "1", "RBK_ENTRY_SAMPLES": "8", "RBK_ENTRY_SHARE_NET": "env", **variables}
    words = ["bash", str(ENTRY / "again.sh"), str(folder)]
    return subprocess.run(words, env=settings, capture_output=True, text=True, check=True, cwd=folder.parent).stdout


def entry(folder, *, more="", digest=None, weights="weights.safetensors"):
    """Write an entry with code of its own, which prints commands of the runner."""
    folder.mkdir(parents=True)
    save_file({"2.weight": torch.ones(10, 48), "2.bias": torch.zeros(10)}, folder / "weights.safetensors")
    digest = digest or sha256((folder / "weights.safetensors").read_bytes())
    (folder / "entry.toml").write_text(CARD.format(weights=weights, digest=digest))
    (folder / "net.py").write_text(NET.format(more=more))
    return folder


def test_an_entry_without_records_is_refused_and_its_code_says_nothing(tmp_path):
    assert again(entry(tmp_path / "mine")) == "verdict=refused rows=0 differing=0\n"


def test_weights_that_are_gone(tmp_path):
    folder = entry(tmp_path / "mine", weights="https://127.0.0.1:9/weights.safetensors", digest="0" * 64)
    assert again(folder) == "verdict=gone rows=0 differing=0\n"


SAID = {
    "verdict=accepted rows=298 differing=0": (0, "Of 298 random rows that were made again, 0 differ"),
    "verdict=differs rows=298 differing=3": (1, "Of 298 random rows that were made again, 3 differ"),
    "verdict=gone rows=0 differing=0": (1, "cannot be fetched"),
    "verdict=refused rows=0 differing=0": (1, "prints every reason"),
    "verdict=accepted rows=1 differing=0\n@everyone": (1, "did not finish"),
    "verdict=accepted rows=$(id) differing=0": (1, "did not finish"),
    "::set-output name=line::verdict=accepted": (1, "did not finish"),
    "": (1, "did not finish"),
}


@pytest.mark.parametrize("line", SAID)
def test_a_comment_has_a_verdict_of_the_list_and_numbers_alone(line):
    code, expected = SAID[line]
    done = subprocess.run(["bash", str(ENTRY / "say.sh"), line], capture_output=True, text=True)
    assert done.returncode == code
    assert expected in done.stdout
    assert not any(bad in done.stdout for bad in ("everyone", "uid=", "set-output"))


def test_jobs_have_no_more_than_they_need():
    workflow = yaml.safe_load((ROOT / ".github/workflows/entry.yml").read_text())
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {} == jobs["again"]["permissions"]
    assert [name for name, job in jobs.items() if "write" in job["permissions"].values()] == ["say"]
    assert jobs["entry"]["if"] == "always()"
    for job in jobs.values():
        for step in job["steps"]:
            text = str(step.get("run", ""))
            assert "${{" not in text  # values come by the environment, so that none is part of a script
            if "actions/checkout" in step.get("uses", ""):
                assert step["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"


CNN = """
def build():
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=4), nn.GELU(), nn.Conv2d(16, 32, 2, stride=2), nn.GELU(),
        nn.Flatten(), nn.Linear(512, 10),
    )
"""


def trained_against_attacks():
    """Train the network of `CNN` for seconds, so that its audit has no flag."""
    names = {"nn": torch.nn}
    exec(CNN, names)
    net, (x, y) = names["build"](), load_data("digits", split="train").tensors()
    steps = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(300):
        chosen = torch.randint(len(x), (64,))
        images, change = x[chosen], torch.zeros_like(x[chosen], requires_grad=True)
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(net(images + change), y[chosen])
            (slope,) = torch.autograd.grad(loss, change)
            change = (change + 8 / 255 * slope.sign()).clamp(-8 / 255, 8 / 255).detach().requires_grad_()
        steps.zero_grad()
        torch.nn.functional.cross_entropy(net((images + change.detach()).clamp(0, 1)), y[chosen]).backward()
        steps.step()
    return net


@pytest.mark.slow
def test_an_entry_with_code_of_its_own_from_card_to_verdict(tmp_path, monkeypatch, capsys):
    """Accepted although its code prints commands; refused with forged rows, and with weights of another digest."""
    monkeypatch.chdir(tmp_path)
    source = entry(tmp_path / "source")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(trained_against_attacks().state_dict(), source / "weights.safetensors")
    digest = sha256((source / "weights.safetensors").read_bytes())
    (source / "entry.toml").write_text(CARD.format(weights="weights.safetensors", digest=digest).replace("490", "7994"))
    (source / "net.py").write_text(NET.format(more="").partition("def build")[0] + CNN)
    folder = tmp_path / "submissions" / "mine"
    assert main(["board", "enter", str(source / "entry.toml"), "-o", str(folder), "-q"]) == 0, capsys.readouterr().out
    verdict, rows, differing = again(folder).split()
    assert (verdict, differing) == ("verdict=accepted", "differing=0")
    assert int(rows.partition("=")[2]) >= 8
    (path,) = (folder / "records").glob("*__clean__*.record.json")
    record = load_record(path)
    path.unlink()
    path.with_name(record.outcomes_file.file).unlink()
    saved(record, folder / "records", columns=lambda rows: {"confidence": rows["confidence"] * 0.9})
    assert again(folder, RBK_ENTRY_SAMPLES="298").startswith("verdict=differs")
    (folder / "weights.safetensors").write_bytes(b"others")
    assert again(folder) == "verdict=refused rows=0 differing=0\n"
