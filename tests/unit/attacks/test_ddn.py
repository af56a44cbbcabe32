"""DDN: minimal distances where they are known, a plain transcription of the algorithm, passes."""

import math

import pytest
import torch
from attack_checks import Wavy, drive, rand, where_the_box_binds
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attacks.ddn import DDN
from robustbench_kpca.protocols.threat import Threat

EVERYWHERE = Threat("l2", 100.0)


def test_the_distance_is_minimal_also_where_pixels_touch_the_box(linear):
    model, x, y, least = where_the_box_binds(linear, 16)
    state = drive(DDN(steps=200, gamma=0.05, init_norm=1.0), model, x, y, EVERYWHERE, None)
    assert bool((model(state["x"]).argmax(1) != y).all())
    ratio = state["best_distance"] / least
    assert float(ratio.min()) >= 1 - 1e-5
    assert float(ratio.max()) < 1.05


def test_a_plain_transcription_finds_the_same():
    model, x, steps, gamma = Wavy((1, 5, 5)), rand(1, 6, 1, 5, 5), 30, 0.05
    y = model(x).argmax(1)
    state = drive(DDN(steps=steps, gamma=gamma, init_norm=0.5), model, x, y, EVERYWHERE, None)
    for row in range(6):
        at, radius, best, nearest = x[row], 0.5, math.inf, x[row]
        for k in range(steps):
            image = at.clone().requires_grad_()
            logits = model(image[None])
            F.cross_entropy(logits, y[row : row + 1]).backward()
            broken = int(logits.argmax()) != int(y[row])
            if broken and float((at - x[row]).norm()) < best:
                best, nearest = float((at - x[row]).norm()), at
            radius *= 1 - gamma if broken else 1 + gamma
            turn = 0.01 + 0.99 / 2 * (1 + math.cos(math.pi * k / steps))
            delta = at - x[row] + turn * image.grad / image.grad.norm()
            at = (x[row] + radius * delta / delta.norm()).clamp(0, 1)
        assert math.isfinite(best)
        assert float(state["best_distance"][row]) == pytest.approx(best, rel=1e-9)
        assert torch.allclose(state["x"][row], nearest, atol=1e-9)


def test_the_length_stays_in_the_box_and_a_zero_gradient_has_a_direction_of_its_own():
    # Where nothing is misclassified, the radius grows to the furthest corner and no further.
    x = torch.tensor([[[[0.0, 0.25]]], [[[0.5, 0.9]]]])
    model = Wavy((1, 1, 2), lead=1000.0, dtype=torch.float32)
    state = drive(DDN(steps=40, gamma=0.2, init_norm=0.1), model, x, torch.tensor([0, 0]), EVERYWHERE, None)
    assert torch.allclose(state["radius"], torch.tensor([1.25, (0.5**2 + 0.9**2) ** 0.5]).double(), atol=1e-6)
    assert torch.equal(state["x"], x)
    x, y = torch.full((3, 1, 4, 4), 0.5), torch.zeros(3, dtype=torch.int64)

    def flat(images):
        return torch.stack([0 * images.flatten(1).sum(1) + 1, 0 * images.flatten(1).sum(1)], 1)

    ddn, keys = DDN(steps=5, gamma=0.05, init_norm=0.1), torch.tensor([8, 9, 10])
    first = drive(ddn, flat, x, y, EVERYWHERE, 1, keys)["at"] - x
    assert torch.allclose(first.flatten(1).norm(dim=1), torch.full((3,), 0.105), atol=1e-6)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[1:2], drive(ddn, flat, x[:1], y[:1], EVERYWHERE, 1, keys[1:2])["at"] - x[:1])
