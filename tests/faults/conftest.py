"""A small classifier of digits, in a file of its own, that fails where a file beside it says so."""

import multiprocessing
import os
import textwrap
from pathlib import Path

import pytest
import torch
from stand_ins import short_training

from robustbench_kpca import load_data

os.environ.setdefault("OMP_NUM_THREADS", "1")
PRELOAD = [
    "robustbench_kpca.evaluation.worker", "robustbench_kpca.evaluation.execute", "robustbench_kpca.cli.main",
    "robustbench_kpca.cli.evaluate", "robustbench_kpca.training.loop",
]  # fmt: skip
TOY = """
import multiprocessing, os, random, signal, sys, time
from pathlib import Path
import torch
from torch import nn

HERE = Path(__file__).parent
OTHER = multiprocessing.current_process().name.startswith("evaluation-")
OTHER = OTHER or sys.argv[0].endswith("default_worker.py")  # of Ray

def taken(path):
    '''Whether this process is the one that deletes a file.'''
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True

class Toy(nn.Module):
    '''The nearest class mean. In other processes than the first, each pass may be the last.'''

    def __init__(self):
        super().__init__()
        self.means = nn.Parameter(torch.load(HERE / "means.pt"))
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        if OTHER:
            self.fail(x)
        return (2 * x.flatten(1) @ self.means.T - self.means.square().sum(1)) / 50

    def fail(self, x):
        if (HERE / "slow").exists():
            time.sleep(0.03)
        if (HERE / "clock").exists():
            time.time = lambda: random.uniform(0, 1e10)
        if taken(HERE / f"kill-{self.passes}"):
            os.kill(os.getpid(), signal.SIGKILL)
        if taken(HERE / f"full-{self.passes}"):
            raise MemoryError
        if (HERE / "poison.pt").exists():
            poison = torch.load(HERE / "poison.pt")
            if (x - poison).abs().flatten(1).amax(1).min() < 0.05:
                os.kill(os.getpid(), signal.SIGKILL)

def build():
    return Toy()
"""


@pytest.fixture(scope="session")
def means() -> torch.Tensor:
    images, labels = load_data("digits", "train").tensors()
    return torch.stack([images[labels == label].mean(0).flatten() for label in range(10)])


@pytest.fixture(scope="session")
def digits():
    return load_data("digits", limit=24).in_order()


@pytest.fixture
def toy(tmp_path, means) -> Path:
    folder = tmp_path / "toy"
    folder.mkdir()
    torch.save(means, folder / "means.pt")
    (folder / "toy.py").write_text(textwrap.dedent(TOY))
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch, few_resamples):
    """Start processes from one that has imported the package, and make small shards."""
    multiprocessing.set_forkserver_preload(PRELOAD)
    monkeypatch.setattr("robustbench_kpca.evaluation.processes.START", "forkserver")
    monkeypatch.setattr("robustbench_kpca.records.shards.LEAST_BATCHES", 1)


@pytest.fixture
def recipe(tmp_path) -> Path:
    return short_training(tmp_path / "short.toml", 2)
