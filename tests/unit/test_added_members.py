"""Members of families that a program adds from a file of its own, and what a record says of their code."""

import importlib
import sys

import pytest
import torch

from robustbench_kpca import evaluate
from robustbench_kpca.attack_loop.cost import most_passes
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.protocols.loading import load_scenario

ATTACK = '''
"""One step up."""
from dataclasses import dataclass
import torch
STRENGTH = 1.0

@dataclass(frozen=True)
class OneStep:
    """Move every pixel up."""

    def start(self, x, y, threat, keys):
        return {"x": x, "finished": torch.zeros(len(x), dtype=torch.bool)}

    def step(self, state, threat, query):
        # the box ends at 1
        x = (state["x"] + STRENGTH * threat.eps).clamp(0, 1)
        query.logits(x)
        return state | {"x": x, "finished": torch.ones(len(x), dtype=torch.bool)}
'''
PROTOCOL = """
kind = "attack"
title = "One step"
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
attack = "one-step"
restarts = 1
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a file and import it, as a program that is started afresh."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def module(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        names.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def attacked(module, tmp_path, monkeypatch, linear):
    """Evaluate under an added attack whose file has this text; every picture is 4/255 below the threshold."""
    (tmp_path / "one-step.toml").write_text(PROTOCOL)
    x = torch.full((6, 3, 4, 4), 0.5)
    model = linear(torch.ones(48), -48 * (0.5 + 4 / 255)).eval()

    def attacked(text=ATTACK, **how):
        monkeypatch.setitem(ATTACKS.added, "one-step", module("my_attack", text).OneStep)
        labels, protocol = torch.zeros(6, dtype=torch.int64), str(tmp_path / "one-step.toml")
        return evaluate(model, x, labels, protocol=protocol, audit=False, out=tmp_path / "runs", **how)

    return attacked


def test_an_attack_that_does_not_say_what_it_costs_is_run_and_not_estimated(attacked, tmp_path):
    told = []
    record = attacked(progress=lambda done, total, /, **news: told.append((done, total, news)))
    assert record.metrics["robust_accuracy"].value == 0
    assert record.passes.forwards > 0
    assert told[-1][:2] == (6, 6)
    assert not any("left" in news or "passes" in news for _, _, news in told)
    assert most_passes(load_scenario(str(tmp_path / "one-step.toml"))[1], 2) is None
