"""SLD: which pixels share a step, where the ball binds, and a plain transcription of the update."""

import pytest
import torch
from attack_checks import Wavy, drive, half_within_reach, passes, rand
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks.sld import SLD
from robustbench_kpca.protocols.threat import Threat

RULE = "euclidean"
STAGE = {
    "attack": "sld", "restarts": 1, "steps": 20, "step_size": "0.1 eps", "sparsity": 91.0, "skip_clipped": False,
    "random_start": False, "projection": RULE,
}  # fmt: skip
OPTIONS = {key: value for key, value in STAGE.items() if key not in ("attack", "restarts")}


def test_the_largest_weights_and_the_percentile_share_the_budget(linear):
    # 4 equal largest weights, the 29th to 32nd of 32 pixels moved: the reach is eps |w|_max, the best in L1.
    weight = 0.1 * (rand(0, 2, 4, 4, dtype=torch.float32) - 0.5)
    weight.view(-1)[[3, 8, 17, 30]] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    x, y, bias, eps, needed = half_within_reach(weight, torch.inf)
    counts, broken = passes(STAGE, "l1", eps, linear(weight, bias), x, y)
    assert broken == (needed < eps).tolist()
    assert sum(broken) == 30
    assert counts[broken.index(False)] == (21, 20)
    # Of four values the third and fourth are at or above the 99th percentile, and all of them above the lowest.
    weight = torch.tensor([[[1.0, 0.5], [0.25, 0.125]]])
    x, threat = torch.full((1, 1, 2, 2), 0.4), Threat("l1", 0.2)
    for sparsity, expected in ((99.0, [0.1, 0.1, 0.0, 0.0]), (0.0, [0.05] * 4)):
        attack = SLD(**OPTIONS | {"sparsity": sparsity})
        state = drive(attack, linear(weight, 0.0), x, torch.tensor([0]), threat, None)
        assert torch.allclose((state["x"] - x).flatten(), torch.tensor(expected), atol=1e-6)


def test_a_plain_transcription_takes_the_same_steps():
    shape, eps, sparsity = (1, 5, 5), 1.0, 80.0
    model, x, y = Wavy(shape), rand(5, 4, *shape), torch.arange(4) % 3
    theirs = x.clone()
    for _ in range(7):
        for row in range(4):
            image = theirs[row : row + 1].clone().requires_grad_()
            F.cross_entropy(model(image), y[row : row + 1]).backward()
            gradient = image.grad.flatten()
            order = gradient.abs().argsort()
            step = torch.zeros(25).double()
            step[order[19:]] = gradient[order[19:]].sign() / 6  # the 20th smallest of 25, and all above
            delta = theirs[row].flatten() + 0.3 * step - x[row].flatten()
            low, high = 0.0, 2.0  # the projection: by bisection on what every coordinate loses
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if (delta.abs() - middle).clamp_min(0).sum() > eps else (low, middle)
            if delta.abs().sum() > eps:
                delta = delta.sign() * (delta.abs() - high).clamp_min(0)
            theirs[row] = (x[row].flatten() + delta).clamp(0, 1).view(shape)
    attack = SLD(
        steps=7, step_size=0.3, sparsity=sparsity, skip_clipped=False, random_start=False, projection="euclidean"
    )
    ours = drive(attack, model, x, y, Threat("l1", eps), None)["x"]
    assert torch.allclose(ours, theirs, atol=1e-9, rtol=0)
    assert float((ours - x).abs().flatten(1).sum(1).max()) > 0.9


def test_rescaling_keeps_the_direction_and_the_projection_does_not(linear):
    """From (0.4, 0.2) in a ball of 0.3: in proportion (0.2, 0.1), or each shorter by the same (0.25, 0.05)."""
    x, threat = torch.full((1, 1, 1, 2), 0.3).double(), Threat("l1", 0.3)
    moved = x + torch.tensor([0.4, 0.2]).double()
    for rule, expected in (("rescale", [0.2, 0.1]), ("euclidean", [0.25, 0.05])):
        found = SLD(**OPTIONS | {"projection": rule}).into_ball(moved, x, threat) - x
        assert torch.allclose(found.flatten(), torch.tensor(expected).double())
    edge = torch.tensor([[[[0.9, 0.3]]]]).double()
    found = SLD(**OPTIONS | {"projection": "rescale"}).into_ball(edge + (moved - x), edge, threat) - edge
    assert torch.allclose(found.flatten(), torch.tensor([0.1, 0.2]).double()), "clipped first, so nothing is too long"


def test_skipping_clipped_pixels_spends_the_step_which_is_positive(linear):
    weight = torch.tensor([[[4.0, 3.0, 0.1, 0.1, 0.1]]])
    x = torch.tensor([[[[1.0, 0.5, 0.5, 0.5, 0.5]]]])
    moved = {}
    for skip in (False, True):
        attack = SLD(
            steps=1, step_size=0.1, sparsity=99.0, skip_clipped=skip, random_start=False, projection="euclidean"
        )
        moved[skip] = drive(attack, linear(weight, 0.0), x, torch.tensor([0]), Threat("l1", 0.2), None)["x"] - x
    assert torch.allclose(moved[False].flatten(), torch.tensor([0, 0.05, 0, 0, 0]))
    assert float(moved[True][0, 0, 0, 0]) == 0
    assert float(moved[True].abs().sum()) == pytest.approx(0.1)
    with pytest.raises(BadInputError, match="step_size"):
        SLD(**OPTIONS | {"step_size": 0})
