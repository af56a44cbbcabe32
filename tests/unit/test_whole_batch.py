"""`attack(..., train_mode="keep")`: the verdicts of the usual path, and a model in training mode stays as it was."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from robustbench_kpca import attack, load_data, load_model
from robustbench_kpca._core.errors import BadInputError, EvaluationError

N = 24
LAST = {"policy": "last"}


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


NETWORKS = {"transformer": lambda: load_model("vit_digits"), "convolutional": lambda: convolutional().eval()}
ASKED = {
    "first": ("pgd20-linf-2_255", {"steps": 5}),
    "last": ("pgd20-linf-2_255", {"steps": 5, **LAST}),
    "strongest": ("pgd20-linf-2_255", {"steps": 5, "restarts": 2, "policy": "strongest"}),
    "l2": ("pgd20-linf-2_255", {"steps": 5, "norm": "l2", "eps": "64/255"}),
    "predicted labels, normalised space": ("teo2024-pgd", {"eps": 0.05}),
    "targeted": ("pgd20-linf-2_255", {"steps": 5, "eps": "8/255", "target": "runner_up"}),
    "stages": ("autoattack-linf-8_255", {"eps": "2/255", "steps": 4, "queries": 10}),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("asked", ASKED)
def test_verdicts_are_those_of_the_usual_path_sample_by_sample(network, asked, batch):
    protocol, changes = ASKED[asked]
    model = NETWORKS[network]()
    usual = attack(model, *batch, protocol, batch_size=N, seed=3, **changes)
    whole = attack(model, *batch, protocol, seed=3, train_mode="keep", **changes)
    assert torch.equal(whole.broken, usual.broken)
    assert asked != "first" or int(usual.broken.sum()) > 0, "something is to be seen"


def test_in_training_mode_it_is_a_loop_of_gradients_of_the_whole_batch(batch):
    """Against PGD written out, with statistics of each batch."""
    model, (x, y) = convolutional().train(), batch
    eps, step, moved = 8 / 255, 2 / 255, x.clone()
    for _ in range(7):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model(moved), y, reduction="sum"), moved)
        moved = (moved + step * gradient.sign()).detach()
        moved = (x + (moved - x).clamp(-eps, eps)).clamp(0, 1)
    how = {"steps": 7, "step_size": "2/255", "random_start": False, **LAST}
    found = attack(model, x, y, "pgd20-linf-8_255", train_mode="keep", **how)
    assert torch.allclose(found.images, moved, atol=1e-6)
    assert found.backwards.tolist() == [7] * N
    assert found.forwards.tolist() == [8] * N


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
    try:
        attack(model, *batch, "pgd20-linf-8_255", steps=2, train_mode="keep")
    except (BadInputError, EvaluationError):
        assert fails
    torch.set_rng_state(state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())
    assert [name for name, one in model.named_parameters() if not one.requires_grad] == ["5.weight"]


@pytest.mark.untyped  # what is refused is of other shapes
def test_what_it_does_not_do_is_refused(batch):
    model = load_model("vit_digits")
    with pytest.raises(BadInputError, match="train_mode = 'always'; expected 'refuse' or 'keep'"):
        attack(model, *batch, "fgsm-linf-8_255", train_mode="always")
    with pytest.raises(BadInputError, match="checks = 'never'; expected 'always' or 'once'"):
        attack(model, *batch, "fgsm-linf-8_255", checks="never")
    with pytest.raises(BadInputError, match="precision = 'bf16-search'"):
        attack(model, *batch, "fgsm-linf-8_255", precision="bf16-search", train_mode="keep")
    scenes, segmenter = load_data("shapes", limit=2), load_model("symvit_shapes")
    with pytest.raises(BadInputError, match="many labels"):
        attack(segmenter, scenes, None, "segpgd20-linf-1_255", train_mode="keep")


def test_checks_are_made_once_for_the_same_weights(batch):
    model, how = convolutional().eval(), {"steps": 2, "batch_size": N, "checks": "once"}
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))

    def passes(**changes):
        calls.clear()
        found = attack(model, *batch, "pgd20-linf-2_255", **how | changes)
        return len(calls), found.broken.tolist(), found.images.sum().item()

    first, again = passes(), passes()
    assert (again[1:], first[0] - again[0]) == (first[1:], 4)
    assert passes(checks="always")[0] == passes(batch_size=2 * N)[0] == first[0]
    passes()
    with torch.no_grad():
        model[0].weight.mul_(1.01)
    assert passes()[0] == first[0]
