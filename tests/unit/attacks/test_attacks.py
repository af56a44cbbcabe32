"""Attacks against a model whose minimal perturbations are known, and against the reference library."""

import pytest
import torch
from attack_checks import half_within_reach, rand

from robustbench_kpca import attack, load_data, load_model
from robustbench_kpca.attacks.fgsm import FGSM
from robustbench_kpca.attacks.pgd import PGD
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

EPS = {"linf": 8 / 255, "l2": 0.5}
APGD = "apgd-ce-linf-8_255"


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    ("protocol", "changes"),
    [
        ("fgsm-linf-8_255", {}),
        ("pgd20-linf-8_255", {}),
        (APGD, {"steps": 50}),
        (APGD, {"steps": 50, "loss": "ce_targeted"}),
    ],
)
def test_exactly_the_samples_within_eps_of_the_hyperplane_flip(linear, protocol, changes, norm):
    weight = rand(0, 3, 4, 4) - 0.5
    images, labels, bias, eps, needed = half_within_reach(weight, 1 if norm == "linf" else 2)
    result = attack(linear(weight, bias).double().eval(), images, labels, protocol, norm=norm, eps=eps, **changes)
    assert torch.equal(result.broken, needed < eps)
    assert int(result.broken.sum()) == 30


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=16).tensors()


@pytest.mark.parametrize("model", ["vit_digits", "rpc_symvit_digits_adv"])
def test_fgsm_equals_torchattacks(model, digits):
    torchattacks = pytest.importorskip("torchattacks")
    network, (x, y) = load_model(model), digits
    threat = Threat("linf", 8 / 255)
    state = FGSM().start(x, y, threat, torch.arange(len(y)))
    ours = FGSM().step(state, threat, WatchedQuery(network))["x"]
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
        state = pgd.step(state, threat, WatchedQuery(network))
    assert bool(state["finished"].all())
    assert torch.allclose(state["x"], theirs, atol=1e-12, rtol=0)
    assert float((state["x"] - x).flatten(1).norm(dim=1).min()) > 0.1
