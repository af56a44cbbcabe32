"""Few images under the name of many, attacks and audits of few steps, objects posing as others, and a small model."""

import importlib
import json
import os
import pickle
import stat
import subprocess
import sys
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from robustbench_kpca.data import DATASETS
from robustbench_kpca.evaluation.sharded import Sharded
from robustbench_kpca.evaluation.worker import make
from robustbench_kpca.protocols import presets
from robustbench_kpca.tasks import TASKS, task_named
from robustbench_kpca.training.recipe import load_recipe

ROOT = Path(__file__).parents[1]
ACTION = ROOT / ".github" / "actions" / "robustness"


@contextmanager
def few_digits(count):
    """Let every part of the digits have only its first images."""
    with few_of("digits", count):
        yield


@contextmanager
def few_of(name, count):
    """Let every part of a data set have only its first samples."""
    module = importlib.import_module(f"{DATASETS.package}.{name}")
    load = module.load

    @wraps(load)
    def few(*asked):
        return load(*asked).take(range(count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load", few)
        yield


@contextmanager
def short_audits(tasks=None):
    """Let every attack of an audit take two steps, where the machinery is tested and not the verdict."""
    with pytest.MonkeyPatch.context() as patch:
        for task in tasks or TASKS.names():
            attacks = task_named(task).compute.audit.attacks
            for name, (protocol, given) in list(attacks.items()):
                few = {key: 2 for key in ("steps", "queries", "samples", "restarts") if key in given}
                patch.setitem(attacks, name, (protocol, given | few))
        yield


@contextmanager
def short_attacks(**most):
    """Let stages of protocols have at most so many steps, queries and so on, where no attack is looked at."""
    load = presets.load_protocol

    def short(protocol):
        name, data = load(protocol)
        for stage in data.get("stage", ()):
            stage |= {key: min(stage[key], value) for key, value in most.items() if key in stage}
        return name, data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "load_protocol", short)
        yield


def short_training(path, epochs):
    """Write the recipe of `symvit_digits_adv` with so many epochs, each a step of its attack long."""
    text = load_recipe("symvit_digits_adv")[2]
    for name, before, after in (("epochs", 120, epochs), ("warmup_epochs", 40, 1), ("steps", 5, 1)):
        assert f"{name} = {before}" in text
        text = text.replace(f"{name} = {before}", f"{name} = {after}")
    path.write_text(text)
    return path


def posing_as(kind, /, **attributes):
    """Return an object of these attributes alone that checks of types take for one of `kind`."""
    return type(kind.__name__, (SimpleNamespace,), {"__class__": property(lambda self: kind)})(**attributes)


def attack_protocol(title, attack):
    """The text of a protocol of one attack without options, in L-infinity 8/255."""
    return f"""
kind = "attack"
title = "{title}"
citations = []
draws = 1
norm = "linf"
eps = "8/255"
policy = "stop_at_first"
labels = "true"
target = "none"
space = "pixel"
clip = true
precision = "fp32"
below = []

[[stage]]
attack = "{attack}"
restarts = 1
"""


def corruption_protocol(corruptions, severities, profile="imagecorruptions", *, clean=False):
    """The text of a protocol of corruptions that are made in the fast mode."""
    return f"""
kind = "corruption"
title = "Some corruptions"
citations = []
draws = 1
profile = "{profile}"
mode = "fast"
storage = "none"
frost = "generated"
clean = {str(clean).lower()}
reference = "none"
corruptions = {json.dumps(corruptions)}
severities = {severities}
"""


def tables(folder):
    """Return the outcomes of every record in a folder, packed, by the name of their file."""
    return {path.name: path.read_bytes() for path in folder.glob("*.outcomes.csv.xz")}


class Flat(nn.Module):
    """A linear model, where the machinery is tested and not the verdict."""

    def __init__(self, seed=0):
        super().__init__()
        weight = torch.randn(3 * 32 * 32, 10, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(0.01 * weight)
        self.eval()

    def forward(self, x):
        return x.flatten(1) @ self.weight


class Here(Sharded):
    """An engine that makes shards in this process, but fails at the work that `fails` says."""

    count = 1

    def __init__(self, fails=lambda work: False):
        self.fails, self.made = fails, []

    def submit(self, content, shard):
        work, answer = pickle.loads(content), Future()
        if self.fails(work):
            answer.set_exception(ValueError("why"))
        else:
            self.made.append(work.spec.stem())
            answer.set_result(make(content, shard))
        return answer


def scripted(folder, script, **environment):
    """Run a script of the action where `rbk` is this package."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "rbk"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m robustbench_kpca "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    found = {key: value for key, value in os.environ.items() if not key.startswith(("RBK_", "GITHUB_"))}
    return subprocess.run(
        ["bash", str(ACTION / script)], capture_output=True, text=True, cwd=folder, timeout=300,
        env=found | {"PATH": path, "PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip
