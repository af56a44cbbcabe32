"""Attacks against a model whose minimal perturbations are known, and against the reference library."""

import pytest
import torch

from robustbench_kpca import attack, load_data, load_model
from robustbench_kpca.attacks.fgsm import FGSM
from robustbench_kpca.attacks.pgd import PGD
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.plain_query import PlainQuery

EPS = {"linf": 8 / 255, "l2": 0.5}
PROTOCOL = {"linf": "pgd20-linf-8_255", "l2": "pgd20-l2-128_255"}


def spread_along(weight, norm, n):
    """Images well inside the box whose distances to the hyperplane w.x = b run from 0.1 eps to 1.9 eps."""
    d = weight.numel()
    generator = torch.Generator().manual_seed(0)
    centre = 0.5 + 0.02 * (torch.rand(n, d, generator=generator, dtype=torch.float64) - 0.5)
    flat = weight.flatten()
    dual = flat.abs().sum() if norm == "linf" else flat.norm()
    bias = -0.5 * flat.sum()
    wanted = EPS[norm] * torch.linspace(0.1, 1.9, n, dtype=torch.float64) * (1 - 2 * (torch.arange(n) % 2))
    step = flat / flat.norm() ** 2
    images = centre + ((wanted * dual) - (centre @ flat + bias))[:, None] * step
    return images.view(n, *weight.shape), bias, wanted


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["fgsm", "pgd"])
def test_exactly_the_samples_within_eps_of_the_hyperplane_flip(linear, norm, name):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    images, bias, distances = spread_along(weight, norm, 181)
    labels = (distances > 0).long()
    model = linear(weight, float(bias)).double().eval()
    eps = EPS[norm]
    assert float(images.min()) >= eps / 16 if norm == "l2" else float(images.min()) >= eps
    protocol = PROTOCOL[norm] if name == "pgd" else "fgsm-linf-8_255"
    changes = {"norm": norm, "eps": eps} if name == "fgsm" else {}
    result = attack(model, images, labels, protocol, **changes)
    gap = distances.abs() - eps
    decided = gap.abs() > 1e-6
    assert int(decided.sum()) >= 180
    assert torch.equal(result.broken[decided], (gap < 0)[decided])
    assert 80 < int(result.broken.sum()) < 100


@pytest.mark.parametrize("name", ["fgsm-linf-8_255", "pgd20-linf-8_255"])
def test_where_the_box_binds(linear, name):
    """The reach of sample i is sum_j |w_j| min(eps, room_ij): what the box leaves, not eps ||w||_1."""
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(1, 6, 6, generator=generator, dtype=torch.float64)
    images = torch.rand(200, 1, 6, 6, generator=generator, dtype=torch.float64)
    images = torch.where(torch.rand(images.shape, generator=generator) < 0.5, images.round(), images)
    flat, eps = weight.flatten(), 8 / 255
    score = images.flatten(1) @ flat
    bias = -float(score.median()) - 1e-3
    score = score + bias
    labels = (score > 0).long()
    towards = -torch.sign(score)[:, None] * flat.sign()
    room = torch.where(towards > 0, 1 - images.flatten(1), images.flatten(1)).clamp(max=eps)
    reach = (room * flat.abs()).sum(1)
    flips = reach > score.abs()
    unboxed = eps * flat.abs().sum() > score.abs()
    assert int((flips != unboxed).sum()) >= 5, "the case must bind"
    result = attack(linear(weight, bias).double().eval(), images, labels, name)
    assert torch.equal(result.broken, flips)


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=16).tensors()


@pytest.mark.parametrize("model", ["vit_digits", "rpc_symvit_digits_adv"])
def test_fgsm_equals_torchattacks(model, digits):
    torchattacks = pytest.importorskip("torchattacks")
    network, (x, y) = load_model(model), digits
    threat = Threat("linf", 8 / 255)
    state = FGSM().start(x, y, threat, torch.arange(len(y)))
    ours = FGSM().step(state, threat, PlainQuery(network))["x"]
    theirs = torchattacks.FGSM(network, eps=8 / 255)(x, y)
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert float((ours - x).abs().max()) > 0.03


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("model", ["vit_digits", "rpc_symvit_digits_adv"])
def test_pgd_equals_torchattacks_from_the_same_start(model, norm, digits):
    torchattacks = pytest.importorskip("torchattacks")
    network, (x, y) = load_model(model).double(), digits  # in single precision, ten steps carry rounding to 2e-6
    x, eps, steps = x.double(), EPS[norm], 10
    library = {"linf": torchattacks.PGD, "l2": torchattacks.PGDL2}[norm]
    with torch.random.fork_rng():  # the library draws from the global generator: let it, and draw the same again
        torch.manual_seed(0)
        attacker = library(network, eps=eps, alpha=0.25 * eps, steps=steps, random_start=True)
        attacker.eps_for_division = 1e-30  # its 1e-10 shortens the L2 steps of confident models
        theirs = attacker(x, y)
        torch.manual_seed(0)
        delta = torch.empty_like(x)
        if norm == "linf":
            delta.uniform_(-eps, eps)
        else:
            delta.normal_()
            length = delta.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            delta *= torch.zeros_like(length).uniform_(0, 1) / length * eps
    threat, pgd = Threat(norm, eps), PGD(steps=steps, step_size="0.25 eps", random_start=True)
    state = pgd.start(x, y, threat, torch.arange(len(y))) | {"x": (x + delta).clamp(0, 1)}
    for _ in range(steps):
        state = pgd.step(state, threat, PlainQuery(network))
    assert bool(state["finished"].all())
    assert torch.allclose(state["x"], theirs, atol=1e-12, rtol=0)
    assert float((state["x"] - x).flatten(1).norm(dim=1).min()) > 0.1
