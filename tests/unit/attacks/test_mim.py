"""MIM: a linear model in closed form, and the reference library from the same start."""

import pytest
import torch
from attack_checks import drive, half_within_reach, passes, rand

from robustbench_kpca import load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks.mim import MIM
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

STAGE = {"attack": "mim", "restarts": 1, "steps": 10, "step_size": "0.1 eps", "decay": 1.0}
MINE = MIM(steps=10, step_size="0.1 eps", decay=1.0)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_on_a_linear_model_exactly_what_is_within_eps_breaks(norm, linear):
    weight = rand(0, 2, 4, 4, dtype=torch.float32) - 0.5
    x, y, bias, eps, needed = half_within_reach(weight, 1 if norm == "linf" else 2)
    _, broken = passes(STAGE, norm, eps, linear(weight, bias), x, y)
    assert broken == (needed < eps).tolist()
    assert sum(broken) == 30


@pytest.mark.parametrize("model", ["vit_digits", "rpc_symvit_digits_adv"])
def test_it_equals_torchattacks(model):
    torchattacks = pytest.importorskip("torchattacks")
    network, (x, y) = load_model(model), load_data("digits", limit=32).tensors()
    state = drive(MIM(steps=10, step_size="0.25 eps", decay=0.9), network, x, y, Threat("linf", 8 / 255), None)
    theirs = torchattacks.MIFGSM(network, eps=8 / 255, alpha=2 / 255, steps=10, decay=0.9)(x, y)
    assert torch.allclose(state["x"], theirs, atol=1e-6, rtol=0)
    assert float((state["x"] - x).abs().max()) > 0.03


def test_momentum_is_the_sum_of_normalised_gradients_and_a_step_is_positive():
    # Gradients (1, -3) then (-2, 2) with decay 0.5: (0.25, -0.75) then (-0.375, 0.125).
    gradients = [torch.tensor([[[[1.0, -3.0]]]]), torch.tensor([[[[-2.0, 2.0]]]])]

    class Scripted(WatchedQuery):
        def gradient(self, x, loss, *, outside=False):
            return torch.zeros(len(x)), gradients.pop(0)

    mim = MIM(steps=2, step_size=0.01, decay=0.5)
    state = mim.start(torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]), Threat("linf", 0.1), torch.tensor([0]))
    state = mim.step(state, Threat("linf", 0.1), Scripted(None))
    assert torch.allclose(state["momentum"], torch.tensor([[[[0.25, -0.75]]]]))
    assert torch.allclose(state["x"], torch.tensor([[[[0.51, 0.49]]]]))
    state = mim.step(state, Threat("linf", 0.1), Scripted(None))
    assert torch.allclose(state["momentum"], torch.tensor([[[[-0.375, 0.125]]]]))
    assert torch.allclose(state["x"], torch.tensor([[[[0.5, 0.5]]]]))
    x = torch.full((2, 1, 2, 2), 0.5)
    state = drive(MINE, lambda x: 0 * x.flatten(1)[:, :2], x, torch.tensor([0, 0]), Threat("linf", 0.1), 3)
    assert torch.equal(state["x"], x)
    with pytest.raises(BadInputError, match="step_size"):
        MIM(steps=1, step_size=0, decay=1.0)
