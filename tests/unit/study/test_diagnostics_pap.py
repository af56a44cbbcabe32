"""Claims about the pursuit, on keys and values of which the answers are known."""

import math

import made_layers
import pytest
import torch
from made_layers import judge, randn
from torch import nn

from robustbench_kpca.attention.rpc import Iterate, Pursuit, RPCAttention
from robustbench_kpca.attention.rpc_asymmetric import AsymmetricRPCAttention
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.study.diagnostics import CLAIMS, thresholds
from robustbench_kpca.study.diagnostics.claims import Results
from robustbench_kpca.study.diagnostics.claims.mixing import diagonal, entropy, value_distance
from robustbench_kpca.study.diagnostics.diagnosis import Measured, Unit
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.pursuits import density, effective_rank, residual, traces

pytestmark = pytest.mark.usefixtures("fork")

TOKENS, WIDTH, HEADS = 24, 8, 3
PAP = ("decomposition", "low_rank", "mixing", "sparsity")


def layer(k, v, q=None, **options):
    kind = RPCAttention if q is None else AsymmetricRPCAttention
    module = kind(HEADS * WIDTH, HEADS, **options)
    return made_layers.layer(k if q is None else q, k, v, module=module)


def random(std=1.0, seed=0, **options):
    k, v = (randn(5, HEADS, TOKENS, WIDTH, seed=2 * seed + part) for part in range(2))
    return layer(std * k, v, **options)


@pytest.mark.parametrize("name", PAP)
def test_only_layers_with_a_pursuit_are_asked(name):
    claim = CLAIMS.get(name)
    one = random()
    assert claim.applies(one)
    assert not claim.applies(random(iterations=0))
    assert not claim.applies(Layer(0, "x", nn.Identity(), one.x, one.q, one.k, one.v, one.h, one.heads, one.ids, 0))
    found = claim.observe(one)
    assert set(found) == set(claim.statistics) | set(claim.profiles)
    assert all(found[key].shape == (5, HEADS) and torch.isfinite(found[key]).all() for key in claim.statistics)
    assert all(found[key].shape == (5, HEADS, 4) for key in claim.profiles)


def test_the_pursuit_keeps_queries_and_splits_equal_tokens():
    q, k, v = (randn(2, HEADS, TOKENS, WIDTH, seed=seed) for seed in range(3))
    found = traces(layer(k, v, q))
    assert all(torch.equal(step.query, q) for step in found.own)
    expected = Pursuit()(k, v, q)
    assert torch.allclose(found.own[-1].low_rank, expected, rtol=0, atol=1e-12)
    zero = torch.zeros(2, HEADS, TOKENS, WIDTH, dtype=torch.float64)
    v = randn(2, HEADS, 1, WIDTH, seed=1).expand(-1, -1, TOKENS, -1)
    fixed = layer(v.clone(), v.clone(), lam=math.inf)  # equal tokens are a mixture of themselves: L = K, S = 0
    results, _ = judge("decomposition", fixed)
    assert results.statistics["residual_unpursued"].estimate.value < 1e-12
    results, verdict = judge("decomposition", random())
    assert results.statistics["residual"].estimate.low > thresholds.SPLIT_RESIDUAL
    assert verdict.outcome == "not supported"
    step = Iterate(1, v, v, v, v, v, zero)
    assert float(residual(step).max()) == 0


def test_residual_density_and_rank_by_hand():
    k = torch.tensor([[[[3.0, 4.0]]]], dtype=torch.float64)
    zero = torch.zeros_like(k)
    assert float(residual(Iterate(1, k, k, k, k, zero, zero))) == 1
    low = torch.tensor([[[[3.0, 0.0]]]], dtype=torch.float64)
    assert float(residual(Iterate(1, k, k, k, k, low, zero))) == pytest.approx(0.8)
    k, v = torch.tensor([3.0, 0.0, 0.0, 4.0]).view(1, 1, 2, 2), torch.tensor([0.0, 5.0, 12.0, 0.0]).view(1, 1, 2, 2)
    low, sparse = torch.tensor([0.0, 0.0, 0.0, 1.0]).view(1, 1, 2, 2), torch.tensor([3.0, 0, 0, 0]).view(1, 1, 2, 2)
    step = Iterate(2, k, v, k, k, low, sparse)
    assert float(density(step)) == 0.25
    assert float(residual(step)) == pytest.approx(3 / 5)
    assert float(value_distance(step)) == pytest.approx(math.sqrt(25 + 144 + 1) / 13)
    assert float(effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0]))) == pytest.approx(3)
    assert float(effective_rank(torch.tensor([5.0, 0.0]))) == 1
    expected = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert float(effective_rank(torch.tensor([3.0, 1.0]))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("keys", "to_itself", "nats"),
    [(40 * torch.eye(4), 1, 0), (torch.ones(5, 4), 1 / 5, math.log(5)), (torch.tensor([[1.0, 0], [100, 0]]), 0.5, 0)],
    ids=["to themselves", "to all", "to one other"],
)
def test_mixing_by_hand(keys, to_itself, nats):
    k = keys.double().expand(2, 3, *keys.shape)
    step = Iterate(1, k, k, k, k, k, k)
    assert float(diagonal(step).mean()) == pytest.approx(to_itself)
    assert float(entropy(step).mean()) == pytest.approx(nats / math.log(len(keys)), abs=1e-9)


def test_an_empty_s_is_not_testable_and_a_full_one_not_sparse():
    assert judge("sparsity", random(lam=math.inf))[1].outcome == "not testable"
    results, verdict = judge("sparsity", random(lam=1e-9))
    assert verdict.outcome == "not supported"
    assert results.statistics["density"].estimate.value > 0.99
    k = randn(5, HEADS, TOKENS, WIDTH, std=0.1)
    k[:, :, ::6, 0] = 50.0  # one entry in 48
    options = {"iterations": 1, "threshold": "lam/mu", "mu_width": "head"}
    results, verdict = judge("sparsity", layer(k, k.clone(), **options))
    assert results.statistics["density"].estimate.value == pytest.approx(1 / 48)
    assert verdict.outcome == "supported"


def test_saturated_attention_does_not_mix_and_uniform_attention_does():
    k = 30 * torch.nn.functional.normalize(randn(5, HEADS, TOKENS, WIDTH), dim=-1)  # each nearest to itself
    results, verdict = judge("mixing", layer(k, randn(5, HEADS, TOKENS, WIDTH, seed=1), iterations=1, lam=math.inf))
    assert verdict.outcome == "not supported"
    assert results.statistics["diagonal"].estimate.value > 0.9
    assert results.statistics["value_distance"].estimate.value < 0.2
    results, verdict = judge("mixing", random(std=1e-6, iterations=1))
    assert verdict.outcome == "supported"
    assert results.statistics["diagonal"].estimate.value == pytest.approx(1 / TOKENS, rel=1e-4)
    assert results.statistics["entropy"].estimate.value == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "limit", "statistic"),
    [
        ("decomposition", "SPLIT_RESIDUAL", "residual"), ("sparsity", "SPARSE", "density"),
        ("mixing", "SELF_ATTENTION", "diagonal"), ("low_rank", "LOW_RANK_PART", "rank_ratio"),
    ],
)  # fmt: skip
def test_every_verdict_turns_at_its_limit(name, limit, statistic):
    """Everything else speaks for the claim; the statistic lies just within its limit, and then just beyond."""
    claim, level = CLAIMS.get(name), getattr(thresholds, limit)
    for value, outcome in ((0.99 * level, "supported"), (1.01 * level, "not supported")):
        told = {
            key: Measured(
                what="", better="neither", estimate=Estimate(mean, mean, mean, 9, "student"), null=None,
                units=(Unit(layer=0, head=0, mean=mean, deviation=1e-9),),
            )
            for key in claim.statistics
            for mean in [value if key == statistic else 0.0 if key.startswith("empty") else 1.0]
        }  # fmt: skip
        assert claim.verdict(Results(told, {})).outcome == outcome
