"""Attacks in signal space: PGD is a plain loop inside the ball, there is no box, and other protocols are refused."""

import math

import pytest
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.pair import Pair
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.data.sets import waves
from robustbench_kpca.evaluation.api import attack, evaluate
from robustbench_kpca.models import create_model

PLAIN = {"random_start": False, "steps": 4}


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return create_model("softmax_seq_waves", embed_dim=16).eval()


@pytest.fixture(scope="module")
def signals():
    return load_data("waves", limit=24)


def by_hand(model, x, y, norm, eps, steps):
    now = x.clone()
    for _ in range(steps):
        now.requires_grad_()
        (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(model(now), y, reduction="sum"), now)
        length = slope.flatten(1).norm(dim=1)[:, None, None, None]
        delta = now.detach() + eps / 4 * (slope.sign() if norm == "linf" else slope / length) - x
        size = delta.flatten(1).norm(dim=1)[:, None, None, None]
        now = x + (delta.clamp(-eps, eps) if norm == "linf" else delta * (eps / size).clamp(max=1))
    return now.detach()


@pytest.mark.parametrize(("norm", "eps", "name"), [("linf", 0.1, "linf-1_10"), ("l2", 1.0, "l2-1")])
def test_pgd_is_a_plain_loop_inside_the_ball(model, signals, norm, eps, name):
    x, y = signals.tensors()
    keep = (model(x).argmax(1) == y).nonzero()[:, 0]
    data = signals.take(keep.tolist())
    found = attack(model, data, None, f"signal-pgd20-{name}", batch_size=len(keep), policy="last", **PLAIN)
    moved = found.images - data.tensors()[0]
    size = moved.abs().amax() if norm == "linf" else moved.flatten(1).norm(dim=1).max()
    assert eps * 0.9 < float(size) <= eps * (1 + 1e-6)
    assert torch.allclose(found.images, by_hand(model, x[keep], y[keep], norm, eps, 4), atol=1e-5)
    assert float(found.images.min()) < -0.5, "signals leave the box of images"
    assert float(found.images.max()) > 1.5


@pytest.mark.parametrize("protocol", ["signal-apgd-ce-linf-1_10", "signal-pgd20-l2-1"])
def test_every_protocol_of_signals_runs(model, signals, protocol, few_resamples):
    steps = {} if "fgsm" in protocol else {"steps": 3}
    record = evaluate(model, signals, protocol=protocol, audit=False, **steps)
    assert record.metrics["robust_accuracy"].value <= record.metrics["clean_accuracy"].value
    norm, eps = ("l2", 1.0) if "l2" in protocol else ("linf", 0.1)
    assert float(record.outcomes[norm].max()) <= eps * (1 + 1e-5)


def test_the_ball_is_in_the_units_of_the_data_and_waves_can_be_told_apart(model, signals, few_resamples):
    # At ten deviations nothing is left; at a ten-thousandth nothing is lost.
    huge, none = (
        evaluate(model, signals, protocol="signal-pgd20-linf-1_10", audit=False, eps=eps) for eps in ("10", "0.0001")
    )
    assert huge.metrics["robust_accuracy"].value == 0
    assert none.metrics["robust_accuracy"].value == none.metrics["clean_accuracy"].value
    assert best_accuracy(waves.NOISE) > 0.999999  # as their board says


@pytest.mark.parametrize(
    ("data", "protocol", "message"),
    [
        ("waves", "pgd20-linf-8_255", "pixel space, but data 'waves' are signals"),
        ("waves", "common-corruptions-32px", "corrupts images, but data 'waves' are signals"),
        ("digits", "signal-pgd20-linf-1_10", "signal space, but data 'digits' are images"),
        ("digits", "signal-corruptions", "are images"),
        ("listops:test=4,val=1,train=1", "signal-pgd20-linf-1_10", "small changes of a word"),
        ("waves", "ood", "two data sets|images"),
    ],
)
def test_protocols_for_another_form_are_refused(model, data, protocol, message):
    with pytest.raises(BadInputError, match=message):
        evaluate(model, load_data(data, limit=4), protocol=protocol, audit=False)


@pytest.mark.parametrize(
    ("protocol", "overrides", "message"),
    [
        ("signal-pgd20-linf-1_10", {"clip": True}, "no box"),
        ("signal-corruptions", {"mode": "exact"}, "mode = 'exact'"),
        ("word-swap", {"storage": "jpeg-q85"}, "storage = 'jpeg-q85'"),
    ],
)
def test_fields_that_mean_pixels_are_refused(model, signals, protocol, overrides, message):
    with pytest.raises(BadInputError, match=message):
        evaluate(model, signals, protocol=protocol, audit=False, **overrides)


def test_what_is_for_images_is_refused(signals, model):
    digits = Samples.require(load_data("digits", limit=4))
    for pair in ((digits, signals), (signals, digits)):
        with pytest.raises(BadInputError, match="'waves', which are signals"):
            Pair(*pair)
    with pytest.raises(BadInputError, match="--audit none"):
        evaluate(model, signals, protocol="signal-fgsm-linf-1_10")


def best_accuracy(noise):
    """P of `data/sets/waves.py`."""
    power, others = waves.LENGTH / (2 * noise**2), len(waves.PERIODS) - 1
    return math.fsum(
        (-1) ** n * math.comb(others, n) / (n + 1) * math.exp(-n * power / (n + 1)) for n in range(others + 1)
    )


@pytest.mark.parametrize("noise", [1.2, 3.0])
def test_the_best_accuracy_of_waves_is_that_of_the_best_classifier(noise):
    """The classifier of largest energy, on 2,000 signals, against the published sum."""
    drawn = torch.stack([torch.from_numpy(waves.draw(1, "x", i, noise)) for i in range(2_000)]).double()
    angle = 2 * math.pi * torch.tensor(waves.PERIODS).double()[:, None] * torch.arange(waves.LENGTH) / waves.LENGTH
    one = torch.stack([angle.sin(), angle.cos()], 1).flatten(1)
    two = torch.stack([angle.cos(), -angle.sin()], 1).flatten(1)
    energy = (drawn.flatten(1) @ one.T) ** 2 + (drawn.flatten(1) @ two.T) ** 2
    right = (energy.argmax(1) == torch.arange(2_000) % 4).double().mean()
    best = best_accuracy(noise)
    assert abs(float(right) - best) < 4 * math.sqrt(best * (1 - best) / 2_000) + 1e-3
