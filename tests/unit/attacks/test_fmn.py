"""FMN: minimal distances where they are known, a plain transcription of algorithm 1, and foolbox's program."""

import math

import pytest
import torch
from attack_checks import Wavy, drive, minimal_l2, rand, where_the_box_binds
from torch import nn

from robustbench_kpca.attacks import fmn
from robustbench_kpca.attacks.fmn import FMN
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.protocols.threat import Threat

EVERYWHERE = {"linf": Threat("linf", 1.0), "l2": Threat("l2", 100.0), "l1": Threat("l1", 1000.0)}
DUAL = {"linf": 1, "l2": 2, "l1": math.inf}
ORDER = {"linf": math.inf, "l2": 2, "l1": 1}


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_distance_to_a_hyperplane_is_minimal(linear, norm):
    weight = rand(0, 2, 4, 4) - 0.5
    x = 0.45 + 0.1 * rand(1, 8, 2, 4, 4)
    score = x.flatten(1) @ weight.flatten()
    model = linear(weight, -float(score.median()) - 1e-3).double()
    y = model(x).argmax(1)
    least = (score - score.median() - 1e-3).abs() / weight.flatten().norm(p=DUAL[norm])
    state = drive(FMN(steps=300, step_size=1.0, gamma=0.05), model, x, y, EVERYWHERE[norm], None)
    lies_at(state, model, x, least, norm)


def test_the_distance_is_nearly_minimal_where_pixels_touch_the_box(linear):
    model, x, y, least = where_the_box_binds(linear, 16)
    state = drive(FMN(steps=300, step_size=1.0, gamma=0.05), model, x, y, EVERYWHERE["l2"], None)
    lies_at(state, model, x, least, "l2")


def lies_at(state, model, x, least, norm):
    """The last iterate is as far as the plane and at it; what is misclassified is no nearer, and every image is."""
    with torch.no_grad():
        assert float(model(state["at"]).abs().max()) < 1e-3
    ratio = distance(state["at"], x, norm) / least
    assert float(ratio.min()) >= 1 - 2e-2
    assert float(ratio.max()) < 1.02
    assert float((state["best_distance"] / least).min()) >= 1 - 1e-5
    assert float((state["best_distance"] / least).max()) < 1.02


class Prototypes(nn.Module):
    """-|x - p_j|^2 for the prototype p_j of every class: linear, up to what all classes share."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(rand(99, 4, 3, 8, 8, dtype=torch.float32) / 2 + 0.25)

    def forward(self, x):
        return -(x[:, None] - self.p).square().flatten(2).sum(-1)


@pytest.mark.parametrize("overshoot", [1.0, fmn.OVERSHOOT])
def test_no_image_is_missed_where_the_box_clips_every_step(overshoot, monkeypatch):
    """By algorithm 1 alone, nothing is broken at any distance; the least distance to a class is that of its plane."""
    monkeypatch.setattr(fmn, "OVERSHOOT", overshoot)
    model, y = Prototypes(), torch.arange(32) % 4
    p = model.p.detach()
    x = (p[y] - 0.25 + 0.5 * rand(0, 32, 3, 8, 8, dtype=torch.float32)).clamp(0, 1)
    edge = rand(1, *x.shape) < 0.3
    x[edge] = x[edge].round()
    assert torch.equal(model(x).argmax(1), y)
    state = drive(FMN(steps=100, step_size=1.0, gamma=0.05), model, x, y, Threat("l2", 3.0), None)
    if overshoot == 1:
        assert bool(state["best_distance"].isinf().all())
        return
    norms, least = p.square().flatten(1).sum(1), torch.full((32,), torch.inf, dtype=torch.float64)
    for own in range(4):
        for other in {0, 1, 2, 3} - {own}:
            plane = minimal_l2(x[y == own], 2 * (p[own] - p[other]), float(norms[other] - norms[own]))
            least[y == own] = torch.minimum(least[y == own], plane)
    ratio = state["best_distance"] / least
    assert float(ratio.min()) >= 1 - 1e-5
    assert float(ratio.median()) < 1.0001
    assert float(ratio.max()) < 1.05  # where the planes of two classes are about as near


def _projected(delta, radius, norm):
    if norm == "linf":
        return delta.clamp(-radius, radius)
    return delta if float(delta.norm()) <= radius else delta * (radius / float(delta.norm()))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_plain_transcription_finds_the_same(norm):
    model, x, steps, first, gamma = Wavy((1, 5, 5)), rand(1, 6, 1, 5, 5), 30, 0.5, 0.05
    y = model(x).argmax(1)
    search = FMN(steps=steps, step_size=first, gamma=gamma)
    state = drive(search, model, x, y, EVERYWHERE[norm], None)
    for row in range(6):
        delta, radius, best, nearest = torch.zeros_like(x[row]), math.inf, math.inf, None
        corner = float(torch.maximum(x[row], 1 - x[row]).flatten().norm(p=ORDER[norm]))
        for k in range(steps):
            image = (x[row] + delta).requires_grad_()
            logits = model(image[None])[0]
            label = int(y[row])
            loss = logits[label] - max(logits[j] for j in range(3) if j != label)
            (g,) = torch.autograd.grad(loss, image)
            turn = (1 + math.cos(math.pi * k / steps)) / 2
            gamma_k, alpha_k = 0.001 + (gamma - 0.001) * turn, first * (0.01 + 0.99 * turn)
            length = float(delta.flatten().norm(p=ORDER[norm]))
            if loss.item() < 0:
                if length < best:
                    best, nearest = length, x[row] + delta
                radius = min(radius * (1 - gamma_k), best)
            elif best == math.inf:
                radius = 1.01 * (length + loss.item() / float(g.flatten().norm(p=DUAL[norm])))
            else:
                radius *= 1 + gamma_k
            radius = min(radius, corner)
            delta = _projected(delta - alpha_k * g / g.norm(), radius, norm)
            delta = (x[row] + delta).clamp(0, 1) - x[row]
        assert float(state["best_distance"][row]) == pytest.approx(best, rel=1e-6)
        if nearest is not None:
            assert torch.allclose(state["x"][row], nearest, atol=1e-6)
    assert int(torch.isfinite(state["best_distance"]).sum()) >= 4


@pytest.mark.parametrize(("norm", "name"), [("linf", "LInfFMNAttack"), ("l1", "L1FMNAttack")])
def test_distances_equal_foolbox(norm, name, monkeypatch):
    """Without our factor. Its L2FMNAttack does not project, so there is nothing to compare there."""
    monkeypatch.setattr(fmn, "OVERSHOOT", 1.0)
    foolbox = pytest.importorskip("foolbox")
    model, x = Wavy((2, 5, 5), dtype=torch.float32).eval(), rand(2, 12, 2, 5, 5, dtype=torch.float32)
    y = model(x).argmax(1)
    state = drive(FMN(steps=50, step_size=1.0, gamma=0.05), model, x, y, EVERYWHERE[norm], None)
    seen = foolbox.PyTorchModel(model, bounds=(0, 1))
    theirs = getattr(foolbox.attacks, name)(steps=50)(seen, x, y, epsilons=None)[0]
    far = (theirs - x).flatten(1).norm(p=ORDER[norm], dim=1).double()
    found = torch.isfinite(state["best_distance"])
    assert int(found.sum()) >= 10
    assert torch.allclose(state["best_distance"][found], far[found], rtol=1e-3)
