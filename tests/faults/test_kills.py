"""Kill -9 at random moments: what is made in the end is what an undisturbed run makes, and nothing is made twice."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation import processes
from robustbench_kpca.records import shard_folder
from robustbench_kpca.records.shard_folder import read_state
from robustbench_kpca.records.shards import SUFFIX

KILLS = int(os.environ.get("RBK_KILLS", "200"))
ALONE = ("created", "seconds")
GRID = ["--set", "corruptions=['gaussian_noise', 'contrast']", "--set", "severities=[1, 3]"]
WORK = {
    "attack": ["-m", "{toy}/toy.py:build", "--data", "digits", "--limit", "24", "-p", "pgd20-linf-4_255", "--set",
               "steps=5", "--batch-size", "4", "--keep-adversarial", "9"],
    "corruptions": ["-m", "{toy}/toy.py:build", "--data", "digits", "--limit", "24", "-p", "noise-blur-contrast", *GRID,
                    "--batch-size", "4"],
    "scenes": ["-m", "symvit_shapes", "--data", "shapes", "--limit", "6", "-p", "segpgd20-linf-1_255", "--set",
               "steps=2", "--batch-size", "2"],
    "language": ["-m", "softmax_lm_tiny", "--data", "grammar", "--limit", "6", "-p", "random-swap-words-1.5",
                 "--batch-size", "2"],
}  # fmt: skip


def first(arguments, errors, address):
    """Be the first process of a command."""
    share(address)
    shard_folder.EVERY = 0.2
    with errors.open("w") as sys.stderr:
        code = main(arguments)
    sys.exit(code)


SERVER_LOST = 255
"""It is unknown how a process ended: another was killed while it asked the server for one, and the server fell."""


def begin(arguments, errors):
    server = forkserver._forkserver
    server.ensure_running()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=first, args=(arguments, errors, server._forkserver_address))
    process.start()
    return process


def share(address):
    """Let this process start others from its parent's server, and not from one that must import torch first."""
    processes.START = "forkserver"
    forkserver._forkserver._forkserver_address = address
    forkserver._forkserver.ensure_running = resource_tracker.ensure_running


def evaluation(name, toy, seed, out, count):
    words = [word.format(toy=toy) for word in WORK[name]]
    options = ["--seed", str(seed), "--audit", "none", "--device", "cpu", "-q", "-o", str(out)]
    return ["eval", *words, *options, "--processes", str(count)]


def training(recipe, seed, out):
    return ["train", str(recipe), "--set", f"seed={seed}", "--resume", "-q", "-o", str(out)]


def content(folder):
    """Return every file with its bytes; of records and trainings without when they were made and how long that took."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(".record.json"):
            record = json.loads(path.read_bytes())
            found[path.name] = {key: value for key, value in record.items() if key not in ALONE}
        elif path.name.endswith(".spent.json"):
            found[path.name] = json.loads(path.read_bytes())["epochs"]
        elif path.is_file():
            found[path.name] = path.read_bytes()
    return found


def files(out, ending):
    """Yield the files whose names end so; folders may vanish meanwhile, which `Path.rglob` does not bear."""
    for folder, _, names in os.walk(out):
        yield from (Path(folder, name) for name in names if name.endswith(ending))


class Watch:
    """Sees that no finished shard is written again."""

    def __init__(self, out):
        self.out, self.seen = out, {}

    def look(self):
        for path in files(self.out, SUFFIX):
            with suppress(FileNotFoundError):  # the record is finished
                found = path.stat()
                mark = (found.st_ino, found.st_mtime_ns)
                assert self.seen.setdefault(path, mark) == mark, f"{path.name} was made again"


def workers(out):
    """Return the processes that work on shards now, as the state says."""
    states = [read_state(path.parent) for path in files(out, "state.json")]
    return [one.pid for state in states if state is not None for one in state.running.values()]


def run_and_kill(arguments, out, drawn, length, most):
    """Carry a command out to its end, and kill a process at random moments, at most so often; return how often."""
    killed, watch = 0, Watch(out)
    while True:
        process = begin(arguments, out.parent / "said")
        due = time.monotonic() + drawn.uniform(0, length)
        while process.exitcode is None:
            process.join(0.01)
            watch.look()
            if killed < most and time.monotonic() > due:
                victims = [process.pid, *workers(out)]
                with suppress(ProcessLookupError):
                    os.kill(drawn.choice(victims), signal.SIGKILL)
                    killed += 1
                due = time.monotonic() + drawn.uniform(0, length)
        if process.exitcode == 0:
            return killed
        with suppress(ProcessLookupError):
            while process.exitcode == SERVER_LOST:
                os.kill(process.pid, 0)
                time.sleep(0.01)
        # killed, or one shard was hit three times
        assert process.exitcode in (-signal.SIGKILL, 3, SERVER_LOST), (out.parent / "said").read_text()


def campaign(names, kills, toy, recipe, tmp_path):
    """Make one record or training after the other while processes are killed, until `kills` were."""
    drawn, total, number = random.Random(0), 0, 0
    counts = dict.fromkeys(names, 0)
    while total < kills:
        name = names[number % len(names)]
        plain, out = tmp_path / f"plain{number}" / "runs", tmp_path / f"out{number}" / "runs"
        out.parent.mkdir()
        if name == "training":
            once, disturbed = training(recipe, number, plain), training(recipe, number, out)
        else:
            once, disturbed = (evaluation(name, toy, number, *one) for one in ((plain, 1), (out, 2)))
        started = time.monotonic()
        undisturbed = begin(once, tmp_path / "said")
        undisturbed.join()
        assert undisturbed.exitcode == 0, (tmp_path / "said").read_text()
        length = (time.monotonic() - started) / 2
        (toy / "slow").touch()
        killed = run_and_kill(disturbed, out, drawn, length, min(10, kills - total))
        (toy / "slow").unlink()
        whole, made = content(plain), content(out)
        assert made.keys() == whole.keys(), "and no other file"
        assert made == whole
        total, number = total + killed, number + 1
        counts[name] += killed
        print(f"{total} killed, {name}: as undisturbed", flush=True)
    return counts


def test_a_few_random_kills(toy, recipe, tmp_path):
    campaign(["attack"], 3, toy, recipe, tmp_path)


@pytest.mark.slow
def test_two_hundred_random_kills(toy, recipe, tmp_path):
    """RBK_KILLS says how many."""
    counts = campaign([*WORK, "training"], KILLS, toy, recipe, tmp_path)
    print(f"killed: {counts}, {sum(counts.values())} in all")
