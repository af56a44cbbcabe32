"""C&W: minimal distances where they are known, a plain transcription of the original, invariances, passes."""

import numpy as np
import pytest
import torch
from attack_checks import Wavy, drive, finish, passes, rand, where_the_box_binds
from torch import nn

from robustbench_kpca.attacks.cw import CW
from robustbench_kpca.attacks.ddn import DDN
from robustbench_kpca.protocols.threat import Threat

SMALL = CW(steps=30, lr=0.02, binary_steps=4, initial_const=0.1, confidence=0.0)
STAGE = {
    "attack": "cw", "restarts": 1, "steps": 20, "lr": 0.02, "binary_steps": 3, "initial_const": 1.0, "confidence": 0.0
}  # fmt: skip
EVERYWHERE = Threat("l2", 100.0)


def test_the_distance_is_minimal_also_where_pixels_touch_the_box(linear):
    model, x, y, least = where_the_box_binds(linear, 12)
    assert float((x[-1] * (1 - x[-1])).max()) == 0
    attack = CW(steps=300, lr=0.01, binary_steps=9, initial_const=1e-3, confidence=0.0)
    state, _ = finish(attack, model, x, y, EVERYWHERE)
    assert bool((model(state["x"]).argmax(1) != y).all())
    assert torch.allclose((state["x"] - x).flatten(1).norm(dim=1).double(), state["best_distance"], atol=1e-6)
    large = least > 0.03  # the first step of Adam is lr; smaller distances take smaller steps
    assert int(large.sum()) >= 10
    ratio = (state["best_distance"] / least)[large]
    assert float(ratio.min()) >= 1 - 1e-5
    assert float(ratio.max()) < 1.05


def original(model, x, y, attack):
    """Transcribe the authors' loop for one image: torch's Adam, plain numbers, no state machine, a whole last run."""
    start = torch.atanh(2 * x - 1)
    lower, upper, const = 0.0, 1e10, attack.initial_const
    best, best_image, calls = np.inf, x, 0
    for run in range(attack.binary_steps):
        if run == attack.binary_steps - 1 and attack.binary_steps >= 10:
            const = upper
        modifier = torch.zeros_like(x, requires_grad=True)
        adam, before, success = torch.optim.Adam([modifier], lr=attack.lr), np.inf, False
        for iteration in range(attack.steps):
            image = (torch.tanh(start + modifier) + 1) / 2
            logits = model(image[None])[0]
            calls += 1
            others = torch.cat([logits[:y], logits[y + 1 :]])
            gap = logits[y] - others.max() + attack.confidence
            far = ((image - x) ** 2).sum()
            loss = far + const * torch.clamp(gap, min=0)
            adam.zero_grad()
            loss.backward()
            adam.step()
            if iteration % (attack.steps // 10) == 0:
                if loss.item() > before * 0.9999 and run + 1 < attack.binary_steps:
                    break
                before = loss.item()
            if gap.item() < 0:
                success = True
                if far.item() < best:
                    best, best_image = far.item(), image.detach()
        if success:
            upper = min(upper, const)
        else:
            lower = max(lower, const)
        if upper < 1e9:
            const = (lower + upper) / 2
        elif not success:
            const *= 10
    return np.sqrt(best), best_image, calls


@pytest.mark.parametrize(
    ("binary_steps", "confidence", "initial_const"), [(5, 0.0, 0.01), (10, 0.0, 0.3), (4, 0.2, 0.1), (3, 0.0, 1e-9)]
)
def test_it_equals_the_original(binary_steps, confidence, initial_const):
    model, x = Wavy((1, 5, 5)), 0.05 + 0.9 * rand(1, 5, 1, 5, 5)
    y = model(x).argmax(1)
    attack = CW(
        steps=40, lr=0.03, binary_steps=binary_steps, initial_const=initial_const, confidence=confidence
    )  # fmt: skip
    state, calls = finish(attack, model, x, y, EVERYWHERE)
    found = 0
    for row in range(5):
        far, image, needed = original(model, x[row], int(y[row]), attack)
        assert calls[row] == needed
        if np.isfinite(far):
            found += 1
            assert float(state["best_distance"][row]) == pytest.approx(far, rel=1e-6)
            assert torch.allclose(state["x"][row], image, atol=1e-6)
        else:
            assert float(state["best_distance"][row]) == np.inf
            assert torch.equal(state["x"][row], x[row])
    assert found == 5 if initial_const > 1e-9 else found < 5


class _Shifted(nn.Module):
    def __init__(self, model, shift):
        super().__init__()
        self.model, self.shift = model, shift

    def forward(self, x):
        return self.model(x) + self.shift


def test_constants_change_nothing_and_confidence_is_reached():
    shift = -20000.0
    model, x = Wavy((1, 4, 4)), 0.1 + 0.8 * rand(1, 4, 1, 4, 4)
    y = model(x).argmax(1)
    plain, shifted = (drive(SMALL, one, x, y, EVERYWHERE, None) for one in (model, _Shifted(model, shift)))
    assert bool(torch.isfinite(plain["best_distance"]).all())
    assert torch.allclose(plain["x"], shifted["x"], atol=1e-8)
    model, x = Wavy((1, 4, 4)), 0.1 + 0.8 * rand(1, 4, 1, 4, 4)
    y = model(x).argmax(1)
    for confidence in (0.0, 0.5):
        attack = CW(steps=60, lr=0.05, binary_steps=4, initial_const=1.0, confidence=confidence)
        state = drive(attack, model, x, y, EVERYWHERE, None)
        logits = model(state["x"])
        lead = logits.scatter(1, y[:, None], -torch.inf).amax(1) - logits.gather(1, y[:, None])[:, 0]
        assert bool((lead > confidence).all())


@pytest.mark.parametrize(("runs", "const"), [(1, 30.0), (3, 10.0)])
def test_no_image_is_further_than_foolbox_finds_it(runs, const):
    """Large steps make the objectives of single samples oscillate, which the sum over foolbox's batch hides."""
    foolbox = pytest.importorskip("foolbox")
    model, x = Wavy((1, 5, 5), dtype=torch.float32).eval(), 0.1 + 0.8 * rand(3, 24, 1, 5, 5, dtype=torch.float32)
    y = model(x).argmax(1)
    theirs = foolbox.attacks.L2CarliniWagnerAttack(runs, 50, 0.1, 0.0, const)
    found, _, broken = theirs(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=[100.0])
    far = torch.where(broken[0], (found[0] - x).flatten(1).norm(dim=1).double(), torch.inf)
    attack = CW(steps=50, lr=0.1, binary_steps=runs, initial_const=const, confidence=0.0)
    ours = drive(attack, model, x, y, EVERYWHERE, None)["best_distance"]
    assert int(torch.isfinite(far).sum()) >= 20
    assert bool((ours <= 1.001 * far).all())


@pytest.mark.parametrize("attack", [SMALL, DDN(steps=30, gamma=0.1, init_norm=0.5)])
def test_only_a_find_in_the_ball_is_proposed(attack):
    model, x = Wavy((1, 4, 4)), 0.1 + 0.8 * rand(1, 6, 1, 4, 4)
    y = model(x).argmax(1)
    found = drive(attack, model, x, y, EVERYWHERE, None)["best_distance"]
    eps = float(found.median()) + 1e-9
    state = drive(attack, model, x, y, Threat("l2", eps), None)
    near = found <= eps
    assert 0 < int(near.sum()) < 6
    moved = (state["x"] - x).flatten(1).norm(dim=1)
    assert torch.allclose(moved, torch.where(near, found, 0.0), atol=1e-9)


class _Downhill(nn.Module):
    """Class 0 leads by 100 and loses one for every unit of the pixels' sum: better and better, never broken."""

    def forward(self, x):
        score = x.flatten(1).sum(1)
        return torch.stack([100 - score, 0 * score], 1)


class _Flat(nn.Module):
    def forward(self, x):
        score = 0 * x.flatten(1).sum(1)
        return torch.stack([score + 1, score], 1)


def test_passes():
    """All where the objective keeps falling; where it does not, the second check ends every run but the last."""
    x, y = torch.full((3, 1, 4, 4), 0.5), torch.zeros(3, dtype=torch.int64)
    counts, broken = passes(STAGE, "l2", 0.1, _Downhill(), x, y)
    assert not any(broken)
    assert counts == [(3 * 20 + 1, 3 * 20)] * 3
    stuck, _ = passes(STAGE, "l2", 0.1, _Flat(), x, y)
    assert stuck == [(2 * 3 + 20 + 1, 2 * 3 + 20)] * 3
