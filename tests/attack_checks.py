"""What tests of attacks share: driving one by hand, models, and images of known distances."""

import json
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from robustbench_kpca import load_data, load_model
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.tasks import task_named
from robustbench_kpca.verification.conformance import attack as conformance
from robustbench_kpca.verification.conformance.attack import passes as passes
from robustbench_kpca.verification.conformance.attack import scenario as scenario
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery, Wavy, rand


def drive(attack, model, x, y, threat, steps, keys=None, query=None):
    """Begin and take `steps` steps, or go on to the end if that is None."""
    state = attack.start(x, y, threat, torch.arange(len(y)) if keys is None else keys)
    return advance(attack, model, state, threat, steps, query)


def advance(attack, model, state, threat, steps, query=None):
    done = 0
    while done != steps and not (steps is None and bool(state["finished"].all())):
        state = attack.step(state, threat, query or WatchedQuery(model))
        done += 1
    return state


class Unbreakable(nn.Module):
    """Class 0 wins everywhere, with useful gradients."""

    def __init__(self, classes):
        super().__init__()
        weight = torch.randn(48, classes, generator=torch.Generator().manual_seed(4))
        self.weight, self.lead = nn.Parameter(weight), 3.0 * (torch.arange(classes) == 0)

    def forward(self, x):
        return torch.tanh(x.flatten(1) @ self.weight) + self.lead


class Counting(nn.Module):
    """Counts its passes, stops at some, and has memory for `most` images."""

    def __init__(self, model, stop=None, most=10**9):
        super().__init__()
        self.model, self.stop, self.most, self.passes = model, stop, most, 0

    def forward(self, x):
        self.passes += 1
        if self.passes == self.stop:
            raise KeyboardInterrupt
        if len(x) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return self.model(x)


@contextmanager
def double_by_default():
    """Let tables that a program makes be in double precision, in which sums over pixels do not drift."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def apgd_of_the_authors(model, x, loss, **options):
    """Return the authors' program, the classes of each image by their logits, and the images that it will show."""
    pytest.importorskip("pyautoattack")
    from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted

    seen = []

    def watched(images):
        seen.append(images.detach().clone())
        return model(images)

    theirs = (APGDAttack_targeted if loss.endswith("targeted") else APGDAttack)(watched, **options)
    theirs.loss = loss.replace("_", "-")
    theirs.init_hyperparam(x)
    with torch.no_grad():
        return theirs, model(x).sort(dim=1)[1], seen


def finish(attack, model, x, y, threat):
    """Return every sample's state at the step that finished it, and how many steps that took."""
    state, last, steps = attack.start(x, y, threat, torch.arange(len(y))), None, torch.zeros(len(y))
    running = torch.ones(len(y), dtype=torch.bool)
    while bool(running.any()):
        state = attack.step(state, threat, WatchedQuery(model))
        steps += running
        last = last or {name: rows.clone() for name, rows in state.items()}
        for name, rows in state.items():
            last[name][running] = rows[running]
        running &= ~state["finished"]
    return last, steps


USUAL = "".join(f"{key} = {json.dumps(value)}\n" for key, value in (conformance.USUAL | {"eps": "8/255"}).items())
"""A protocol without stages, in TOML."""
MISCLASSIFIED = task_named("classification").compute.success


def stands(stage, norm="linf", eps=0.1, shape=(2, 6, 6), **fields):
    """Return the passes that a sample costs which cannot be broken, having seen that none was."""
    x, y = rand(3, 5, *shape, dtype=torch.float32), torch.zeros(5, dtype=torch.int64)
    counts, broken = passes(stage, norm, eps, Wavy(shape, lead=100.0, dtype=torch.float32), x, y, **fields)
    assert not any(broken)
    assert len(set(counts)) == 1
    return counts[0]


def attacked(model, images, labels, scenario, batch_size=8, arriving=None):
    """Return every sample as the loop leaves it, where images come `arriving` at a time."""
    found, count = {}, len(labels)
    runner = Runner(model.eval(), batch_size, torch.device("cpu"), scenario.draws)
    ids = [str(row) for row in range(count)]
    engine = Engine(runner, scenario, MISCLASSIFIED, ids, 0, lambda sample: found.update({sample.index: sample}))
    parts = torch.arange(count).split(arriving or count)
    engine.run((part.tolist(), images[part], labels[part]) for part in parts)
    return [found[row] for row in range(count)]


def minimal_l2(images, weight, bias):
    """Return the L2 distance from every image to w.x + b = 0 inside the box, by bisection on the multiplier of w."""
    flat, weight = images.flatten(1).double(), weight.flatten().double()
    score = flat @ weight + bias
    towards = -torch.sign(score)[:, None] * weight
    low, high = torch.zeros(len(flat), 1).double(), torch.full((len(flat), 1), 1e4).double()
    for _ in range(100):
        middle = (low + high) / 2
        crossed = torch.sign((flat + middle * towards).clamp(0, 1) @ weight + bias) != torch.sign(score)
        low, high = torch.where(crossed[:, None], low, middle), torch.where(crossed[:, None], middle, high)
    return ((flat + high * towards).clamp(0, 1) - flat).norm(dim=1)


def half_within_reach(weight, dual, n=60):
    """Return images well inside the box, labels, bias, the eps that reaches half of them, and each one's own."""
    x = 0.4 + 0.2 * rand(1, n, *weight.shape, dtype=weight.dtype)
    score = x.flatten(1) @ weight.flatten()
    bias = -float(score.median()) - 1e-3
    needed = (score + bias).abs() / float(weight.flatten().norm(p=dual))
    return x, (score + bias > 0).long(), bias, float(needed.sort().values[n // 2 - 1 : n // 2 + 1].mean()), needed


def network(kind, classes=5, activation=nn.Tanh):
    """Build a model on 3 x 4 x 4 images, or load the digits one; `activation` is the one after a convolution."""
    if kind == "digits":
        return load_model("vit_digits")
    layers = {
        "linear": [nn.Flatten(), nn.Linear(48, classes)],
        "mlp": [nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, classes)],
        "conv": [nn.Conv2d(3, 6, 3), activation(), nn.Flatten(), nn.Linear(24, classes)],
    }[kind]
    return nn.Sequential(*layers).eval()


def batch(model, kind, n=6):
    if kind == "digits":
        x, _ = load_data("digits", limit=8).tensors()
    else:
        x = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        return x, model(x).argmax(1)


def black_and_white(n, shape):
    """Images with from none to all of their pixels exactly 0 or 1."""
    x, share = rand(4, n, *shape), torch.linspace(0, 1, n).view(-1, 1, 1, 1)
    return torch.where(rand(5, n, *shape) < share, x.round(), x).float()


def where_the_box_binds(linear, n):
    """Return a linear model, images whose pixels touch the box, their labels, and the least L2 distance of each."""
    weight = (rand(0, 1, 5, 5) - 0.5).float()
    x = black_and_white(n, weight.shape)
    bias = -float((x.flatten(1) @ weight.flatten()).median()) - 0.01
    model = linear(weight, bias)
    least = minimal_l2(x, weight, bias)
    plain = model(x)[:, 1].detach().abs() / weight.norm()
    assert int((least > 1.02 * plain).sum()) >= 3, "the box must bind"
    return model, x, model(x).argmax(1), least
