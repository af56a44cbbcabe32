"""The search of SEA: its steps are the authors', scene by scene; its balls shrink; what it may not know it refuses."""

import pytest
import torch
from attack_checks import drive, rand
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks.apgd_shrinking import ShrinkingAPGD
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

LINF = Threat("linf", 0.1)
LOSSES = ("ce_masked_by_class", "ce_masked", "js")


class Blurry(torch.nn.Module):
    """Three classes a pixel, not linear, each pixel's logits made from its neighbourhood."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(4 * (rand(0, 6, 3, 3, 3) - 0.5))
        self.head = torch.nn.Parameter(rand(1, 3, 6, 1, 1) - 0.5)

    def forward(self, x):
        return F.conv2d(torch.sin(3 * F.conv2d(x, self.weight, padding=1)), self.head)


def scene(seed=3, count=4, side=6):
    """Images and labels, some of them wrong and a row of them to be ignored."""
    x = rand(seed, count, 3, side, side)
    with torch.no_grad():
        y = Blurry()(x).argmax(1)
    y[:, 1, ::2] = (y[:, 1, ::2] + 1) % 3
    y[:, 0] = -1
    return x, y


def pixel_losses(name, logits, labels):
    """What is climbed and what is compared, of one scene, pixel by pixel."""
    known = labels >= 0
    z, y = logits.permute(1, 2, 0)[known], labels[known]
    entropy = torch.logsumexp(z, 1) - z[torch.arange(len(y)), y]
    right = z.argmax(1) == y
    if name == "js":
        p, one_hot = z.softmax(1), F.one_hot(y, z.shape[1]).to(z.dtype)
        middle = (p + one_hot) / 2
        climbed = ((p * (p / middle).log()).sum(1) - middle[torch.arange(len(y)), y].log()) / 2
        return climbed.mean(), entropy.mean(), right.double().mean()
    if name == "ce_masked":
        return (entropy * right).mean(), entropy.mean(), right.double().mean()
    parts = [(entropy * right)[y == label].sum() / (y == label).sum() for label in y.unique()]
    return torch.stack(parts).mean(), entropy.mean(), right.double().mean()


def one_scene(model, start, clean, labels, eps, steps, name, rho=0.75):
    """The authors' program for one scene: lists of losses instead of a state, a loop for each radius."""
    early = int(0.3 * steps)
    point, shown = start, []

    def look(x):
        x = x.detach().requires_grad_()
        climbed, compared, right = pixel_losses(name, model(x[None])[0], labels)
        (slope,) = torch.autograd.grad(climbed, x)
        shown.append(x.detach())
        return slope, float(compared.detach()), float(right)

    for radius, count in ((2 * eps, early), (1.5 * eps, early), (eps, steps - 2 * early)):

        def inside(x, radius=radius):
            return (clean + (x - clean).clamp(-radius, radius)).clamp(0, 1)

        x = before = inside(point)
        slope, value, right = look(x)
        best, best_slope, best_value, at_check, reduced = x, slope, value, value, True
        point, fewest = x, right
        size, window, since, rises, last = 2 * radius, max(int(0.22 * count), 1), 0, 0, 0.0
        for number in range(count):
            z = inside(x + size * slope.sign())
            share = 0.75 if number else 1.0
            x, before = inside(x + share * (z - x) + (1 - share) * (x - before)), x
            slope, value, right = look(x)
            if right <= fewest:
                point, fewest = x, right
            rises += value > last
            last, since = value, since + 1
            if value > best_value:
                best, best_slope, best_value = x, slope, value
            if since == window:
                stuck = not reduced and at_check >= best_value
                reduced = rises <= rho * window or stuck
                at_check = best_value
                if reduced:
                    size, x, slope = size / 2, best, best_slope
                window = max(window - max(int(0.03 * count), 1), max(int(0.06 * count), 1))
                since = rises = 0
    return shown, point


@pytest.mark.parametrize("name", LOSSES)
def test_every_iterate_is_the_authors(name):
    model, (x, y), steps = Blurry(), scene(), 40
    attack, shown = ShrinkingAPGD(steps=steps, loss=name, rho=0.75), []
    first = attack.start(x, y, LINF, torch.arange(len(y)))["point"]
    state = drive(
        attack, model, x, y, LINF, None, query=WatchedQuery(model, lambda image, rows, outside: shown.append(image))
    )
    assert len(shown) == steps + 3
    for row in range(len(y)):
        theirs, last = one_scene(model, first[row], x[row], y[row], LINF.eps, steps, name)
        for number, (mine, other) in enumerate(zip(shown, theirs, strict=True)):
            assert torch.allclose(mine[row], other, atol=1e-6), (row, number)
        assert torch.allclose(state["x"][row], last, atol=1e-6)


def test_balls_shrink_and_only_the_last_is_bound():
    model, (x, y), seen = Blurry(), scene(), []
    query = WatchedQuery(model, lambda image, rows, outside: seen.append((float((image - x).abs().max()), outside)))
    drive(ShrinkingAPGD(steps=20, loss="ce_masked", rho=0.75), model, x, y, LINF, None, query=query)
    for phase, (radius, count) in enumerate(((0.2, 7), (0.15, 7), (0.1, 9))):
        far = [distance for distance, _ in seen[:count]]
        assert max(far) == pytest.approx(radius, rel=1e-5)
        assert {outside for _, outside in seen[:count]} == {phase < 2}
        del seen[:count]
    assert not seen


def test_balls_larger_than_the_box_and_other_norms():
    model, (x, y) = Blurry(), scene()
    for threat in (Threat("linf", 0.7), Threat("linf", 0.7, clip=False)):
        state = drive(ShrinkingAPGD(steps=8, loss="js", rho=0.75), model, x, y, threat, None)
        assert float((state["x"] - x).abs().max()) <= 0.7 + 1e-6
        assert bool(((state["x"] >= 0) & (state["x"] <= 1)).all()) == threat.clip
    x, y = scene()
    with pytest.raises(BadInputError, match=r"'apgd_shrinking' .*l2"):
        ShrinkingAPGD(steps=8, loss="js", rho=0.75).start(x, y, Threat("l2", 0.5), torch.arange(len(y)))
