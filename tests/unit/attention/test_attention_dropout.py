"""Dropout of attention weights and of outputs: in training only, at the stated rate, scaled so that the mean stays."""

import pytest
import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS

TOKENS, RATE = 32, 0.25
SOFTMAX = {
    "softmax": {},
    "symmetric": {},
    "scaled": {"tokens": TOKENS},
    "rpc": {"iterations": 1},
    "rpc_asymmetric": {"iterations": 1},
    "temperature": {},
    "cosine": {},
    "kde": {},
    "robust_kde": {},
    "median_of_means": {"outliers": 0.0, "draws": 1},
    "l2": {},
    "pro": {"iterations": 0},
    "twicing": {"order": 1},
    "specformer": {},
}
OTHERS = {
    "identity": {},
    "primal": {"tokens": TOKENS, "rank": 2},
    "kep_svgp": {"tokens": TOKENS, "rank": 2},
    "differential": {},
}
CHAINED = {"neutreno", "elliptical"}  # those of softmax attention, in a chain of layers


def averaging(name, **options):
    """A layer of one head whose keys are 0 and whose values are its inputs: every token gets the mean of all."""
    layer = ATTENTIONS.get(name)(TOKENS, 1, proj_bias=False, **SOFTMAX[name], **options)
    with torch.no_grad():
        layer.qkv.weight.zero_()
        layer.qkv.weight[-TOKENS:] = torch.eye(TOKENS)
        nn.init.eye_(layer.proj.weight)
    return layer


def test_every_attention_is_here():
    assert {*SOFTMAX, *OTHERS, *CHAINED} == set(ATTENTIONS.names())


@pytest.mark.parametrize("name", SOFTMAX)
def test_weights_of_attention_are_dropped(fork, name):
    """On the unit vectors a token's output is its row of the attention matrix: 1 / N everywhere."""
    x = torch.eye(TOKENS).expand(8, -1, -1)
    layer = averaging(name, attn_drop=RATE)
    assert torch.allclose(layer.eval()(x), torch.full_like(x, 1 / TOKENS))
    dropped = layer.train()(x)
    kept = dropped[dropped != 0]
    assert torch.allclose(kept, torch.full_like(kept, 1 / TOKENS / (1 - RATE)))
    assert float((dropped == 0).double().mean()) == pytest.approx(RATE, abs=0.03)  # six standard deviations
    assert torch.equal(averaging(name).train()(x), averaging(name).eval()(x))


@pytest.mark.parametrize("name", ["rpc", "rpc_asymmetric"])
def test_the_iterations_before_the_last_drop_nothing(fork, name):
    x = torch.eye(TOKENS).expand(8, -1, -1)
    layer, steps = averaging(name, attn_drop=RATE), []
    layer.pursuit = type(layer.pursuit)(iterations=2)
    layer.observer = steps.append
    layer.train()(x)
    first, last = (step.low_rank for step in steps)
    assert torch.allclose(first, torch.full_like(first, 1 / TOKENS))
    assert float((last == 0).double().mean()) == pytest.approx(RATE, abs=0.03)


@pytest.mark.parametrize("name", [*SOFTMAX, *OTHERS])
def test_outputs_are_dropped(fork, name):
    options = SOFTMAX.get(name, OTHERS.get(name))
    layer = ATTENTIONS.get(name)(TOKENS, 2, proj_drop=RATE, **options)
    if name == "kep_svgp":
        layer.fixed_noise = torch.zeros(8, 2, 2, 2)
    x = torch.randn(8, TOKENS, TOKENS)
    whole, dropped = layer.eval()(x), layer.train()(x)
    kept = dropped != 0
    assert torch.allclose(dropped[kept], whole[kept] / (1 - RATE), atol=1e-6)
    assert float(kept.double().mean()) == pytest.approx(1 - RATE, abs=0.03)


@pytest.mark.parametrize("name", ["primal", "kep_svgp"])
def test_attention_without_weights_has_none_to_drop(fork, name):
    with pytest.raises(BadInputError, match="attn_drop"):
        ATTENTIONS.get(name)(TOKENS, 2, attn_drop=RATE, **OTHERS[name])
