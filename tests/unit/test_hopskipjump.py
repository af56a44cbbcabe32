"""HopSkipJump: distances where the least is known, decisions only, what it shows, passes."""

import pytest
import torch
from attack_checks import Wavy, drive, half_within_reach, minimal_l2, passes, rand
from torch import nn

from robustbench_kpca.attacks.hopskipjump import HopSkipJump
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.plain_query import PlainQuery

STAGE = {"attack": "hopskipjump", "restarts": 1, "queries": 60, "probes": 10, "max_probes": 100, "gamma": 1.0}
SMALL = HopSkipJump(queries=400, probes=20, max_probes=100, gamma=1.0)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_comes_close_to_the_least_distance(norm, linear):
    weight = rand(0, 1, 3, 3) - 0.5
    x, y, bias, _, needed = half_within_reach(weight, 1 if norm == "linf" else 2, n=12)
    model = linear(weight, bias)
    if norm == "l2":
        assert torch.allclose(minimal_l2(x, weight, bias), needed, atol=1e-9)
    state = drive(SMALL, model, x, y, Threat(norm, 1.0 if norm == "linf" else 100.0), SMALL.queries)
    assert bool((model(state["best"]).argmax(1) != y).all())
    assert torch.allclose(distance(state["best"], x, norm), state["best_distance"])
    ratio = (state["best_distance"] / needed)[needed > 0.01]
    assert float(ratio.min()) > 1 - 1e-9
    assert float(ratio.median()) < 1.1
    assert float(ratio.max()) < 1.5


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_breaks_what_is_clearly_within_reach_and_nothing_beyond(norm, linear):
    weight = rand(0, 1, 3, 3, dtype=torch.float32) - 0.5
    x, y, bias, eps, needed = half_within_reach(weight, 1 if norm == "linf" else 2, n=20)
    _, broken = passes(STAGE | {"queries": 300}, norm, eps, linear(weight, bias), x, y, batch_size=10)
    broken = torch.tensor(broken)
    assert not bool(broken[needed > eps].any())
    assert bool(broken[needed < 0.7 * eps].all())


class _Hard(nn.Module):
    """The same decisions, and nothing else."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        logits = self.model(x)
        return nn.functional.one_hot(logits.argmax(1), logits.shape[1]).to(logits)


def test_decisions_are_all_it_needs():
    model, x = Wavy((1, 4, 4)), rand(1, 4, 1, 4, 4)
    y, threat = model(x).argmax(1), Threat("l2", 0.01)
    soft, hard = (drive(SMALL, one, x, y, threat, 150) for one in (model, _Hard(model)))
    assert all(torch.equal(soft[name], hard[name]) for name in soft)
    assert bool((soft["iteration"] >= 2).all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_search_ends_on_the_boundary_and_probes_surround_it(norm, linear):
    weight = rand(0, 1, 3, 3) - 0.5
    x, y, bias, _, _ = half_within_reach(weight, 1 if norm == "linf" else 2, n=2)
    x, y, model, threat = x[:1], y[:1], linear(weight, bias), Threat(norm, 0.001)
    state, shown, phases = SMALL.start(x, y, threat, torch.arange(1)), [], []
    query = PlainQuery(model, lambda images, rows, outside: shown.append((images, outside)))
    while not phases or phases[-1] < 4:
        phases.append(int(state["phase"]))
        before, state = state, SMALL.step(state, threat, query)
    assert all(outside for _, outside in shown)
    assert phases == sorted(phases)
    assert phases.count(3) == 20
    assert phases.count(1) == 10  # 2^-10 < 0.001
    score = model(before["point"])[0, 1].detach()
    assert abs(float(score)) < 1e-2 * float(weight.flatten().norm())
    assert bool((score > 0) != (y[0] == 1))
    for (image, _), phase in zip(shown, phases, strict=True):
        if phase == 3:
            assert float((image - before["point"]).norm()) <= 0.1 + 1e-9
    v, g = before["answered"].flatten(), weight.flatten() * (1 - 2 * y[0])
    assert float(torch.nn.functional.cosine_similarity(v, g, dim=0)) > 0.5


def test_answers_that_are_all_equal_give_a_direction_too():
    x, y, threat = rand(1, 2, 1, 3, 3), torch.zeros(2, dtype=torch.int64), Threat("l2", 0.001)

    def wrong_unless_clean(images):
        same = (images - x).flatten(1).abs().amax(1) < 1e-3
        return torch.stack([same.double(), (~same).double()], 1)

    state = drive(SMALL, wrong_unless_clean, x, y, threat, 120)
    assert bool((state["iteration"] >= 2).all())
    assert bool(torch.isfinite(state["answered"]).all())
    assert float(state["best_distance"].max()) < 0.01


def test_a_clean_image_that_is_misclassified_is_its_own_nearest_one():
    """Every bisection ends at the clean image, from which nothing is left to spread."""
    x, y = rand(0, 3, 1, 2, 2, dtype=torch.float32), torch.zeros(3, dtype=torch.int64)
    state = drive(SMALL, _Sure(), x, y, Threat("l2", 0.5), SMALL.queries)
    assert torch.isfinite(state["x"]).all()
    assert float(state["best_distance"].max()) < 1e-3


class _Sure(nn.Module):
    """Class 1 everywhere."""

    def forward(self, x):
        return torch.stack([torch.zeros(len(x)), torch.ones(len(x))], 1)
