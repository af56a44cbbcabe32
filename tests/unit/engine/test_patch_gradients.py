"""Gradients go back through convolutions of patches as products only where the bits are those of the convolution."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from robustbench_kpca._engine.inference import patch_gradients
from robustbench_kpca._engine.inference.patch_gradients import PatchGradients


def gradient(convolve, x, weight):
    x = x.clone().requires_grad_()
    answer = convolve(x, weight)
    return torch.autograd.grad((answer * (torch.arange(answer.numel()).view(answer.shape) % 7 - 3)).sum(), x)[0]


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def products(monkeypatch):
    """Nothing is known; the number of products so far."""
    made = []
    product = patch_gradients.product
    monkeypatch.setattr(patch_gradients, "_EQUAL", {})
    monkeypatch.setattr(patch_gradients, "product", lambda *given: made.append(1) or product(*given))
    return made


CONVOLVE = {
    "patches": lambda x, w: F.conv2d(x, w, stride=4),
    "by name": lambda x, w: F.conv2d(input=x, weight=w, bias=torch.ones(12), stride=(4, 4), padding=0),
    "checkpoint": lambda x, w: checkpoint(lambda x: F.conv2d(x, w, stride=4).relu(), x, use_reentrant=False),
    "in place": lambda x, w: F.conv2d(x, w, stride=4).relu_(),
    "overlapping": lambda x, w: F.conv2d(x, w, stride=2),
    "padded": lambda x, w: F.conv2d(x, w, stride=4, padding=2),
    "a rest": lambda x, w: F.conv2d(x[..., 1:], w, stride=4),
    "groups": lambda x, w: F.conv2d(x, w[:, :1], stride=4, groups=3),
    "torch.func": lambda x, w: torch.func.grad(lambda x: F.conv2d(x, w, stride=4).sin().sum())(x),
}


def thrice(convolve, x, weight):
    with PatchGradients():
        return [gradient(convolve, x, weight) for _ in range(3)]


@pytest.mark.parametrize("name", CONVOLVE)
@pytest.mark.parametrize("size", [8, 96])
def test_every_gradient_has_the_bits_of_torch(name, size, products):
    given = CONVOLVE[name], drawn(5, 3, size, size), drawn(12, 3, 4, 4)
    assert all(torch.equal(found, gradient(*given)) for found in thrice(*given))
    assert bool(products) == (name in ("patches", "by name", "checkpoint", "in place"))


def test_a_product_with_other_bits_is_made_once(monkeypatch, products):
    product = patch_gradients.product
    monkeypatch.setattr(patch_gradients, "product", lambda *given: product(*given) * (1 + 1e-6))
    given = CONVOLVE["patches"], drawn(5, 3, 8, 8), drawn(12, 3, 4, 4)
    assert all(torch.equal(found, gradient(*given)) for found in thrice(*given))
    assert len(products) == 1


def test_equal_products_take_the_place_of_the_convolution(products):
    """Sums of whole numbers are exact in any order; those of one feature are so too, and nothing is learnt of them."""
    given = drawn(5, 3, 8, 8), drawn(12, 3, 4, 4).round()
    thrice(lambda x, w: F.conv2d(x, w, stride=4)[:, :1], *given)
    assert not products
    thrice(CONVOLVE["patches"], *given)
    assert len(products) == 3


def test_weights_that_learn_get_their_gradients(products):
    weight = drawn(12, 3, 4, 4).requires_grad_()
    with PatchGradients():
        F.conv2d(drawn(5, 3, 8, 8).requires_grad_(), weight, stride=4).sum().backward()
    assert (weight.grad is None, products) == (False, [])
