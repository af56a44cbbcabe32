"""`torch.inference_mode()`: calls from inside give what they give outside, and so do models and images made there."""

import pytest
import torch
from torch import nn

from robustbench_kpca import attack, evaluate, perturb
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca.audit.run import audit

pytestmark = pytest.mark.usefixtures("few_resamples")
CLEAN = {"protocol": "clean", "audit": False, "quiet": True}
PGD = {"protocol": "pgd20-linf-8_255", "steps": 3, "audit": False, "quiet": True}


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(), nn.Linear(32, 4))
    model[4].bias.requires_grad_(False)
    return model.eval()


@pytest.fixture(scope="module")
def batch():
    x = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return x, network()(x).argmax(1)


CALLS = {
    "attack": lambda model, x, y: attack(model, x, y, "pgd20-linf-8_255", steps=3).images,
    "perturb": lambda model, x, y: perturb(model, x, y, "pgd20-linf-8_255", steps=3),
    "evaluate": lambda model, x, y: evaluate(model, x, y, **PGD).outcomes.digest(),
    "clean": lambda model, x, y: evaluate(model, x, y, **CLEAN).outcomes.digest(),
    "audit": lambda model, x, y: audit(model, x, y, level="quick", quiet=True).checks,
}


def same(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("call", CALLS)
def test_a_call_from_inside_gives_the_same(call, batch):
    expected = CALLS[call](network(), *batch)
    with torch.inference_mode():
        made = CALLS[call](network(), *(part.clone() for part in batch))  # all of them inference tensors
        assert torch.is_inference_mode_enabled()
        assert same(made, expected)
        assert not isinstance(made, torch.Tensor) or not made.is_inference()


@pytest.mark.parametrize("call", ["attack", "evaluate", "clean"])
def test_a_model_made_inside_gives_the_same_and_stays_as_it_is(call, batch):
    with torch.inference_mode():
        model = network()
    before = [(tensor, tensor.requires_grad) for tensor in [*model.parameters(), *model.buffers()]]
    assert same(CALLS[call](model, *batch), CALLS[call](network(), *batch))
    after = [*model.parameters(), *model.buffers()]
    assert all(
        tensor is old and tensor.requires_grad == needed for tensor, (old, needed) in zip(after, before, strict=True)
    )


class Keeps(nn.Module):
    """Multiplies by a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.inner = network()
        with torch.inference_mode():
            self.mask = torch.ones(3, 8, 8)

    def forward(self, x):
        return self.inner(x * self.mask)


def test_what_cannot_be_replaced_or_put_back_is_named(batch, caplog):
    with pytest.raises(BadInputError, match=r"make all tensors of the model outside torch\.inference_mode\(\)"):
        CALLS["attack"](Keeps().eval(), *batch)
    model = nn.LayerNorm(2).requires_grad_(False)
    with frozen(model):
        model.weight.mul_(torch.ones(2, requires_grad=True))  # the result of an operation from now on
    assert "requires_grad of 1 parameters of the model cannot be put back" in caplog.text
