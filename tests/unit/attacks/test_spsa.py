"""SPSA: its estimator against theory, its step against Adam's, what it shows the model, passes."""

import pytest
import torch
from attack_checks import Wavy, drive, rand
from pydantic import ValidationError

from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks._spsa import estimate
from robustbench_kpca.attacks.shared.ball import project
from robustbench_kpca.attacks.spsa import SPSA
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

STAGE = {
    "attack": "spsa", "restarts": 1, "steps": 8, "samples": 32, "delta": 0.01, "lr": 0.02, "random_start": False
}  # fmt: skip
OPTIONS = {key: value for key, value in STAGE.items() if key not in ("attack", "restarts")}


def estimates(model, x, keys, samples):
    attack = SPSA(steps=1, samples=samples, delta=0.01, lr=0.01, random_start=False)
    threat = Threat("linf", 0.1)
    state = attack.start(x, torch.ones(len(x), dtype=torch.int64), threat, keys)
    return estimate(x, state, samples, 0.01, threat, WatchedQuery(model)).flatten(1)


@pytest.mark.parametrize("samples", [32, 128])
def test_the_estimate_points_along_the_gradient_as_theory_says(samples, linear):
    """E g_hat = g and E|g_hat|^2 = |g|^2 (1 + (d - 1) / n) for n pairs: the cosine is sqrt(n / (n + d - 1))."""
    weight = rand(0, 3, 4, 4) - 0.5
    x = torch.full((600, 3, 4, 4), 0.5).double()
    found = estimates(linear(weight, 0.0), x, torch.arange(600), samples)
    gradient = weight.flatten()  # of z_1 - z_0
    cosine = torch.nn.functional.cosine_similarity(found, gradient[None])
    pairs = samples / 2
    assert float(cosine.mean()) == pytest.approx((pairs / (pairs + 47)) ** 0.5, abs=0.02)
    error = (found.mean(0) - gradient).norm() / gradient.norm()
    assert float(error) < 3 * (47 / pairs / 600) ** 0.5


def test_a_pixel_at_the_edge_of_the_box_counts_half(linear):
    weight = rand(0, 1, 2, 2) - 0.5
    x = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]]).double().expand(2000, -1, -1, -1)
    mean = estimates(linear(weight, 0.0), x, torch.arange(2000), 16).mean(0)
    assert torch.allclose(mean, weight.flatten() * torch.tensor([0.5, 0.5, 1, 1]), atol=0.02)


def test_a_step_is_adams_on_the_estimate(linear):
    model, x, threat = linear(rand(0, 1, 3, 3) - 0.5, 0.0), 0.3 + 0.4 * rand(1, 4, 1, 3, 3), Threat("linf", 0.05)
    attack, y = SPSA(**OPTIONS | {"steps": 4}), torch.ones(4, dtype=torch.int64)
    state = attack.start(x, y, threat, torch.arange(4))
    delta = torch.zeros_like(x, requires_grad=True)
    optimiser = torch.optim.Adam([delta], lr=0.02)
    for _ in range(4):
        delta.grad = estimate(state["x"], state, attack.samples, attack.delta, threat, WatchedQuery(model))
        optimiser.step()
        delta.data = project(x + delta.data, x, threat) - x
        state = attack.step(state, threat, WatchedQuery(model))
        assert torch.allclose(state["x"], x + delta.data, atol=1e-9)
    assert float((state["x"] - x).abs().max()) == pytest.approx(0.05)


def test_adam_keeps_a_clock_per_sample():
    """The second sample begins three steps after the first."""
    gradients = rand(0, 6, 2, 1, 2, 2) - 0.5
    moved = mean = square = torch.zeros(2, 1, 2, 2).double()
    for time, gradient in enumerate(gradients):
        begun = torch.tensor([True, time >= 3]).view(2, 1, 1, 1)
        move, new_mean, new_square = adam(gradient, mean, square, torch.tensor([time, max(time - 3, 0)]), 0.1)
        mean, square = torch.where(begun, new_mean, mean), torch.where(begun, new_square, square)
        moved = torch.where(begun, moved - move, moved)
    for row, first in ((0, 0), (1, 3)):
        theirs = torch.zeros(1, 2, 2, requires_grad=True, dtype=torch.float64)
        optimiser = torch.optim.Adam([theirs], lr=0.1)
        for gradient in gradients[first:, row]:
            theirs.grad = gradient
            optimiser.step()
        assert torch.allclose(moved[row], theirs.detach(), atol=1e-12)


def test_probes_come_in_pairs_around_the_iterate_which_is_shown_inside_the_ball():
    shown = []
    x, y, threat = 0.2 + 0.6 * rand(2, 3, 1, 4, 4), torch.zeros(3, dtype=torch.int64), Threat("linf", 0.03)
    attack, query = (
        SPSA(**OPTIONS),
        WatchedQuery(Wavy((1, 4, 4)), lambda images, rows, out: shown.append((images, out))),
    )
    state = drive(attack, None, x, y, threat, 1, query=query)
    assert [outside for _, outside in shown] == [True] * 32 + [False]
    for pair in range(16):
        ahead, behind = shown[2 * pair][0], shown[2 * pair + 1][0]
        assert torch.allclose((ahead + behind) / 2, x)
        assert torch.allclose((ahead - x).abs(), torch.full_like(x, 0.01))
    assert torch.equal(shown[-1][0], state["x"])
    signs = torch.stack([shown[2 * pair][0] > x for pair in range(16)])
    assert 0.4 < float(signs.double().mean()) < 0.6
    assert not torch.equal(signs[:, 0], signs[:, 1])
    assert not torch.equal(signs[0], signs[1])
    with pytest.raises(ValidationError, match="multiple of 2"):
        SPSA(**OPTIONS | {"samples": 7})
