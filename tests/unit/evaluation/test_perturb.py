"""`perturb`: the images of the usual path, with the passes of its search alone; the model stays as it was."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from robustbench_kpca import attack, load_data, load_model, perturb
from robustbench_kpca._core.errors import BadInputError

N = 24


def convolutional(dropout=0.0):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(512, 10)
    )
    model.register_buffer("pixel_mean", torch.zeros(3, 1, 1))
    model.register_buffer("pixel_std", torch.ones(3, 1, 1))
    model(torch.rand(64, 3, 32, 32))  # statistics of something
    torch.manual_seed(1234)  # as the fixture left it
    return model


@pytest.fixture(scope="module")
def batch():
    return load_data("digits", limit=N).in_order().tensors()


BALLS = {"linf": {}, "l2": {"norm": "l2", "eps": "64/255"}, "l0": {"norm": "l0", "eps": "20", "step_size": 0.2}}


@pytest.mark.parametrize("norm", BALLS)
def test_images_are_those_of_an_attack_that_does_not_stop(norm, batch):
    x, y = batch
    how = {"steps": 5, "seed": 3, "policy": "last"} | BALLS[norm]
    for model in (load_model("vit_digits"), convolutional().eval()):
        images = perturb(model, x, y, "pgd20-linf-2_255", **how)
        expected = attack(model, x, y, "pgd20-linf-2_255", batch_size=N, **how).images
        attacked = model(x).argmax(1) == y  # the others stay as they are there
        assert int(attacked.sum()) > 0
        assert torch.allclose(images[attacked], expected[attacked], atol=1e-6)
        assert bool((images != x).flatten(1).any(1).all())


def test_in_training_mode_it_is_a_loop_of_gradients_of_the_whole_batch(batch):
    """Against PGD written out, with statistics of each batch."""
    model, (x, y) = convolutional().train(), batch
    eps, step, moved = 8 / 255, 2 / 255, x.clone()
    for _ in range(7):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model(moved), y, reduction="sum"), moved)
        moved = (moved + step * gradient.sign()).detach()
        moved = (x + (moved - x).clamp(-eps, eps)).clamp(0, 1)
    shown = []
    model.register_forward_hook(lambda *_: shown.append(1))
    how = {"steps": 7, "step_size": "2/255", "random_start": False}
    with torch.no_grad():
        images = perturb(model, x, y, "pgd20-linf-8_255", **how)
    assert torch.allclose(images, moved, atol=1e-6)
    assert len(shown) == 7


@pytest.mark.parametrize("fails", [False, True])
def test_mode_statistics_and_gradients_stay(fails, batch):
    model = convolutional(dropout=0.5).train()
    model[1].eval()
    model[5].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model[1].train()
    modes = [module.training for module in model.modules()]
    if fails:
        model[2].register_full_backward_hook(lambda *_: 1 / 0)
    state = torch.get_rng_state()  # dropout draws from it, as in any training
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        perturb(model, *batch, "pgd20-linf-8_255", steps=2)
    torch.set_rng_state(state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())
    assert [name for name, one in model.named_parameters() if not one.requires_grad] == ["5.weight"]


REFUSED = {
    "an attack in pixels of one stage": {"protocol": "autoattack-linf-8_255"},
    "with one restart": {"restarts": 2},
    "or twin": {"backward_of": "scale=1"},
    "expected an attack": {"protocol": "clean"},
    r"images of torch.uint8, \(24, 3, 32, 32\)": {"images": torch.zeros(N, 3, 32, 32, dtype=torch.uint8)},
    r"labels of torch.int64, \(23,\); expected .* an int64 tensor": {"labels": torch.zeros(N - 1, dtype=torch.int64)},
    "images that are not normalised": {"images": torch.full((N, 3, 32, 32), torch.nan)},
}


@pytest.mark.untyped
@pytest.mark.parametrize("expected", REFUSED)
def test_what_it_does_not_do_is_refused(expected, batch):
    how = {"protocol": "pgd20-linf-8_255", "images": batch[0], "labels": batch[1]} | REFUSED[expected]
    images, labels, protocol = (how.pop(name) for name in ("images", "labels", "protocol"))
    with pytest.raises(BadInputError, match=expected):
        perturb(load_model("vit_digits"), images, labels, protocol, **how)
