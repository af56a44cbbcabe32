import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.attack_loop.sets.ball import Ball
from robustbench_kpca.attacks.shared.ball import (
    ascent_direction,
    distance,
    furthest,
    project,
    require_norm,
    uniform_in_ball,
)
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.protocols.threat import Threat

NORMS = ["linf", "l2", "l1"]
SEED = st.integers(0, 2**32)


def rand(seed, *shape, spread=1.0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * spread


@settings(max_examples=60)
@given(SEED, st.sampled_from(NORMS), st.floats(1e-3, 1))
def test_projection_lands_inside_and_is_idempotent(seed, norm, eps):
    threat = Threat(norm, eps)
    centre, x = rand(seed, 4, 3, 5, 5), rand(seed + 1, 4, 3, 5, 5, spread=3.0) - 1
    inside = project(x, centre, threat)
    assert bool(((inside >= 0) & (inside <= 1)).all())
    assert float(distance(inside, centre, norm).max()) <= eps + 1e-6
    assert torch.allclose(project(inside, centre, threat), inside, atol=1e-6)
    assert torch.allclose(project(centre, centre, threat), centre)


@settings(max_examples=40)
@given(SEED, st.floats(1e-3, 30), st.sampled_from([torch.float32, torch.float64]))
def test_the_projection_in_l1_is_the_nearest_point_of_the_ball(seed, eps, dtype):
    """Against bisection on theta in sum_i max(|delta_i| - theta, 0) = eps; the box is wide enough not to matter."""
    centre = torch.full((3, 2, 4, 4), 0.5, dtype=dtype)
    delta = (rand(seed, 3, 2, 4, 4) - 0.5).to(dtype)
    inside = project(centre + delta, centre, Threat("l1", eps)) - centre
    size = ((centre + delta) - centre).double().abs().flatten(1)
    low, high = torch.zeros(3, 1).double(), torch.ones(3, 1).double()
    for _ in range(100):
        middle = (low + high) / 2
        outside = (size - middle).clamp_min(0).sum(1, keepdim=True) > eps
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    high = torch.where(size.sum(1, keepdim=True) <= eps, 0, high)
    expected = delta.double().sign() * (size - high).clamp_min(0).view(delta.shape)
    assert torch.allclose(inside.double(), expected, atol=1e-6 if dtype == torch.float32 else 1e-12, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_uniform_draws(norm):
    threat, n = Threat(norm, 0.2), 2000
    centre = torch.full((n, 1, 1, 2), 0.5)
    draws = uniform_in_ball(centre, threat, torch.arange(n)) - centre
    assert torch.equal(draws, uniform_in_ball(centre, threat, torch.arange(n)) - centre)
    assert torch.equal(draws[7:9], uniform_in_ball(centre[7:9], threat, torch.arange(7, 9)) - centre[7:9])
    if norm == "linf":
        moments = draws.flatten(1).square().mean(0)
        assert torch.allclose(moments, torch.full((2,), 0.2**2 / 3), rtol=0.08)
    else:  # uniform in a disk, or a square on its corner: P(r < R) = (R / eps)^2
        radius = distance(draws, torch.zeros_like(draws), norm)
        assert torch.allclose(draws.flatten(1).mean(0), torch.zeros(2), atol=0.01)
        for share in (0.25, 0.5, 0.75):
            assert float((radius < 0.2 * math.sqrt(share)).float().mean()) == pytest.approx(share, abs=0.04)


def test_directions_and_unknown_norms():
    g = torch.tensor([[[[3.0, -4.0]]], [[[0.0, 0.0]]]])
    assert torch.equal(ascent_direction(g, "linf")[0], torch.tensor([[[1.0, -1.0]]]))
    assert torch.allclose(ascent_direction(g, "l2")[0], torch.tensor([[[0.6, -0.8]]]))
    assert torch.equal(ascent_direction(g, "l1")[0], torch.tensor([[[0.0, -1.0]]]))
    for norm in NORMS:
        assert torch.equal(ascent_direction(g, norm)[1], torch.zeros(1, 1, 2))
    require_norm(Threat("l2", 1.0), "square", "linf", "l2")
    with pytest.raises(BadInputError, match=r"'square' .*l1"):
        require_norm(Threat("l1", 1.0), "square", "linf", "l2")


@pytest.mark.parametrize("name", ["pgd", "mim", "fgsm", "segpgd"])
def test_attacks_whose_steps_move_one_number_in_l1_refuse_it(name):
    """At the edge of the box such a step is undone, so a search would find next to nothing."""
    options = {"fgsm": {}, "mim": {"steps": 3, "step_size": 0.1, "decay": 1.0}}
    usual = {"steps": 3, "step_size": 0.1, "random_start": False}
    attack = build_attack(Stage(attack=name, restarts=1, options=options.get(name, usual)))
    with pytest.raises(BadInputError, match=f"'{name}' in l1; expected norm = linf or l2"):
        attack.start(torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64), Threat("l1", 1.0), torch.arange(1))


@given(st.integers(0, 2**32 - 1), st.floats(-6, 6), st.floats(0.01, 2.0))
@example(0, 1.8203125, 1.875)
def test_large_values_are_not_rounded_out_of_their_ball(seed, power, eps):
    rng = torch.Generator().manual_seed(seed)
    centre = 10**power * torch.randn(4, 1, 1, 50, generator=rng)
    moved = centre + 3 * eps * torch.randn(4, 1, 1, 50, generator=rng)
    found = project(moved, centre, Threat("linf", eps, clip=False))
    assert bool((distance(found, centre, "linf") <= furthest(eps)).all())


@pytest.mark.parametrize("threat", [Threat("l2", 3.0), Threat("l1", 12.0), Threat("l1", 5000.0)], ids=str)
def test_a_large_image_is_not_rounded_out_of_its_ball(threat):
    """10^5 errors of half a unit in the last place would add up to more than the loop forgives."""
    centre, moved = rand(0, 2, 3, 224, 224), rand(1, 2, 3, 224, 224)
    reach = distance(project(moved, centre, threat), centre, threat.norm)
    assert bool((reach <= threat.eps).all())
    assert bool((reach >= threat.eps * (1 - 1e-3)).all())


@pytest.mark.parametrize("size", [1e-30, 1e20])
def test_the_l2_direction_has_length_one_whatever_the_gradient(size):
    gradient = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * size
    gradient[2] = 0
    length = ascent_direction(gradient, "l2").flatten(1).norm(dim=1)
    assert torch.allclose(length, torch.tensor([1.0, 1.0, 0.0]), atol=1e-6)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_without_a_box_numbers_must_be_finite(value):
    x = torch.zeros(2, 1, 2, 2)
    ball = Ball(Threat("linf", 0.1, clip=False))
    ball.check(x, x, "pgd", Checks(), outside=True)
    x[1, 0, 0, 0] = value
    with pytest.raises(EvaluationError, match="'pgd' proposed values that are not finite"):
        ball.check(x, torch.zeros_like(x), "pgd", Checks(), outside=True)
