"""SegPGD: its loss is the paper's, its weights are its schedule, and it flips what can be flipped."""

import numpy as np
import pytest
import torch
from attack_checks import Wavy, drive, rand

from robustbench_kpca.attacks.pgd import PGD
from robustbench_kpca.attacks.segpgd import SegPGD
from robustbench_kpca.attacks.shared.dense_losses import (
    balanced,
    dense_objective,
    jensen_shannon,
    masked,
    masked_by_class,
)
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

LINF = Threat("linf", 0.1)


def answers(seed=0, batch=3, classes=5, height=4, width=6):
    """Logits and labels, a fifth of them to be ignored; the last image has none at all."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal((batch, classes, height, width))
    labels = rng.integers(0, classes, (batch, height, width))
    labels[rng.random(labels.shape) < 0.2] = -1
    labels[-1] = -1
    return torch.from_numpy(logits), torch.from_numpy(labels)


def by_hand(logits, labels, share, what):
    """Pixel by pixel, as the papers write it."""
    losses = []
    for z, y, part in zip(logits.numpy(), labels.numpy(), share, strict=True):
        total, count = 0.0, 0
        counted = np.bincount(y[y >= 0], minlength=len(z))
        for row, column in zip(*np.nonzero(y >= 0), strict=True):
            pixel, label = z[:, row, column], y[row, column]
            q = np.exp(pixel) / np.exp(pixel).sum()
            right, entropy, one_hot = pixel.argmax() == label, -np.log(q[label]), np.eye(len(q))[label]
            middle = (q + one_hot) / 2
            terms = {
                "ce": entropy,
                "balanced": ((1 - part) if right else part) * entropy,
                "masked": entropy if right else 0.0,
                "by class": (entropy if right else 0.0) * (y >= 0).sum() / (counted[label] * (counted > 0).sum()),
                "js": (np.sum(q * np.log(q / middle)) + np.log(1 / middle[label])) / 2,
            }
            total, count = total + terms[what], count + 1
        losses.append(total / max(count, 1))
    return torch.tensor(losses)


def test_losses_have_the_papers_values_and_ranges():
    logits, labels = answers()
    share = torch.tensor([0.0, 0.3, 0.5])
    assert torch.allclose(cross_entropy(logits, labels), by_hand(logits, labels, share, "ce"))
    assert torch.allclose(balanced(logits, labels, share), by_hand(logits, labels, share.tolist(), "balanced"))
    assert torch.allclose(masked(logits, labels), by_hand(logits, labels, share, "masked"))
    assert torch.allclose(masked_by_class(logits, labels), by_hand(logits, labels, share, "by class"))
    assert torch.allclose(jensen_shannon(logits, labels), by_hand(logits, labels, share, "js"))
    alone, label = rand(1, 6, 4), torch.arange(6) % 4
    assert torch.equal(masked_by_class(alone, label), masked(alone, label)), "an image with one label is one pixel"
    logits = torch.tensor([[200.0, 0.0], [-200.0, 0.0], [0.0, 0.0]]).requires_grad_()
    losses = jensen_shannon(logits, torch.zeros(3, dtype=torch.int64))
    expected = [0.0, np.log(2), np.log(2) + (0.5 * np.log(0.5) - 1.5 * np.log(1.5)) / 2]
    assert losses.tolist() == pytest.approx(expected, abs=1e-6)
    losses.sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_pixels_to_ignore_have_no_slope():
    logits, labels = answers()
    for loss in (
        cross_entropy,
        masked,
        masked_by_class,
        jensen_shannon,
        lambda z, y: balanced(z, y, torch.full((3,), 0.3)),
    ):
        z = logits.clone().requires_grad_()
        loss(z, labels).sum().backward()
        slopes = z.grad.abs().sum(1)
        assert torch.all(slopes[labels < 0] == 0)
        assert torch.isfinite(slopes).all()
        right = logits.argmax(1) == labels
        assert torch.all(slopes[right] > 0)


LOSSES = {"ce_masked": masked, "ce_masked_by_class": masked_by_class, "js": jensen_shannon}


@pytest.mark.parametrize("name", LOSSES)
def test_what_sea_climbs_has_the_slope_of_one_loss_and_the_value_of_another(name):
    logits, labels = answers()
    z = logits.clone().requires_grad_()
    value = dense_objective(name, z, labels)
    assert torch.allclose(value, cross_entropy(logits, labels))
    value.sum().backward()
    other = logits.clone().requires_grad_()
    LOSSES[name](other, labels).sum().backward()
    assert torch.equal(z.grad, other.grad)


class Listening(WatchedQuery):
    """Keeps the gradient of each loss by the logits."""

    def gradient(self, x, loss, *, outside=False):
        z = self.model(x).detach().requires_grad_()
        loss(z).sum().backward()
        self.slopes = [*getattr(self, "slopes", []), (z.detach(), z.grad)]
        return super().gradient(x, loss, outside=outside)


class PerPixel(torch.nn.Module):
    """A 1 x 1 convolution: every pixel is classified by itself, logits W x + b."""

    def __init__(self, classes=3, seed=0):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, classes, 1, dtype=torch.float64)
        with torch.no_grad():
            self.conv.weight.copy_(rand(seed, classes, 3, 1, 1) - 0.5)
            self.conv.bias.copy_(rand(seed + 1, classes) - 0.5)

    def forward(self, x):
        return self.conv(x)


def test_the_share_of_the_wrong_pixels_rises_from_nothing_towards_one_half(fork):
    """lambda_t = (t - 1) / (2 T): read off the slopes by the logits, which cross-entropy alone would have."""
    model, x = PerPixel(), rand(3, 2, 3, 5, 5)
    with torch.no_grad():
        labels = model(x).argmax(1)
    labels[:, ::2] = (labels[:, ::2] + 1) % 3
    labels[:, 0] = -1
    query, steps = Listening(model), 8
    drive(SegPGD(steps, "0.1 eps", random_start=False), model, x, labels, LINF, steps, query=query)
    assert len(query.slopes) == steps
    for number, (z, slope) in enumerate(query.slopes):
        plain = z.clone().requires_grad_()
        cross_entropy(plain, labels).sum().backward()
        share = number / (2 * steps)
        counted, right = labels >= 0, z.argmax(1) == labels
        weights = torch.where(right, 1 - share, share)[:, None]
        assert torch.allclose(slope, weights * plain.grad)
        assert torch.all((slope.abs().sum(1) > 0) == (counted & (right | (number > 0))))


def test_with_one_label_an_image_it_walks_where_pgd_does():
    """A positive factor changes no sign: from the second step on all weights are positive."""
    model, x = Wavy((2, 6, 6)), rand(7, 6, 2, 6, 6)
    labels = model(x).argmax(1)
    options = (5, "0.001 eps", False)
    mine = drive(SegPGD(*options), model, x, labels, LINF, 5)
    theirs = drive(PGD(*options), model, x, labels, LINF, 5)
    assert torch.all(model(mine["x"]).argmax(1) == labels), "the steps are too short to lead anywhere wrong"
    assert torch.equal(mine["x"], theirs["x"])
