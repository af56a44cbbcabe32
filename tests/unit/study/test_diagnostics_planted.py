"""Textbook pursuit against closed forms, planted problems against their definition, and what each rule finds."""

import math

import pytest
import torch
from made_layers import judge, randn

from robustbench_kpca.attention.rpc import Pursuit, RPCAttention
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.planting import (
    Planted,
    paper_rule,
    plant,
    principal_component_pursuit,
    pursue,
    recovery,
    textbook,
)

pytestmark = pytest.mark.usefixtures("fork")

SEEDS = tuple(str(seed) for seed in range(5))


def nuclear(x):
    return float(torch.linalg.svdvals(x).sum())


def test_certificates_of_flat_and_spiked_matrices():
    # s u v^T with entries +-1 of u, v: its dual certificate has entries 1 / sqrt(n m) <= lambda, so S = 0.
    signs = randn(30).sign(), randn(12, seed=1).sign()
    keys = 2.5 * torch.outer(*signs)
    split = principal_component_pursuit(keys)
    assert split.residual <= 1e-7
    assert torch.allclose(split.low_rank, keys, atol=1e-5)
    assert float(split.sparse.abs().max()) < 1e-5
    # |a| lambda < |a| is its cheapest split, and lambda sign(a) its certificate: L = 0.
    keys = torch.zeros(30, 12, dtype=torch.float64)
    keys[7, 3] = -4.0
    split = principal_component_pursuit(keys)
    assert float(split.low_rank.abs().max()) < 1e-5
    assert torch.allclose(split.sparse, keys, atol=1e-5)


def test_no_other_split_is_cheaper():
    keys = randn(15, 10)
    split = principal_component_pursuit(keys, tolerance=1e-10, most_steps=20_000)
    lam = 15**-0.5
    cost = nuclear(split.low_rank) + lam * float(split.sparse.abs().sum())
    assert cost <= min(nuclear(keys), lam * float(keys.abs().sum()))
    for seed in range(20):
        step = randn(15, 10, seed=seed, std=10.0 ** -(seed % 4))
        other = nuclear(split.low_rank + step) + lam * float((split.sparse - step).abs().sum())
        assert cost <= other + 1e-6


@pytest.mark.parametrize("shape", [(65, 64), (197, 64)])
def test_in_the_regime_of_the_theorem_recovery_is_exact(shape):
    found = textbook(plant(*shape, SEEDS))
    assert float(found.error.max()) < 1e-5
    assert float(found.f1.min()) == 1


def test_planted_problems_and_recovery_by_hand():
    planted = plant(197, 64, SEEDS, share=0.1, size=7.0, rank=0.05)
    assert torch.linalg.matrix_rank(planted.low_rank).unique().tolist() == [3]
    assert float(planted.low_rank.std()) == pytest.approx(1, rel=0.1)
    assert set(planted.sparse.unique().tolist()) == {-7.0, 0.0, 7.0}
    assert (planted.sparse != 0).sum((-2, -1)).unique().tolist() == [round(0.1 * 197 * 64)]
    again = plant(197, 64, SEEDS[2:3], share=0.1, size=7.0, rank=0.05)
    assert torch.equal(again.keys[0], planted.keys[2])  # it belongs to the sample
    assert not torch.equal(plant(197, 64, SEEDS, seed=1).keys, plant(197, 64, SEEDS).keys)
    low_rank = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    sparse = torch.tensor([[[[5.0, -5.0], [0.0, 0.0]]]], dtype=torch.float64)
    planted = Planted(low_rank, sparse, torch.ones(1, 1, dtype=torch.float64))
    guess = torch.tensor([[[[1.0, 0.0], [1e-6, 2.0]]]], dtype=torch.float64)
    found = recovery(planted, torch.zeros_like(low_rank), guess)
    assert [float(part) for part in (found.error, found.precision, found.recall, found.f1)] == [1, 0.5, 0.5, 0.5]
    nothing = recovery(planted, low_rank, torch.zeros_like(sparse))
    assert [float(part) for part in (nothing.error, nothing.precision, nothing.recall, nothing.f1)] == [0, 0, 0, 0]
    assert float(recovery(planted, low_rank, sparse).f1) == 1


def test_one_step_and_the_scale_of_s():
    # In the first step S = shrink(K; t): with t between L_0 and the outliers, exactly these are found.
    unit = plant(197, 64, SEEDS[:1])
    small = Planted(unit.low_rank * 1e-3, unit.sparse, unit.scale)
    level = float(small.keys.abs().mean())
    found = pursue(small, Pursuit(1, lam=0.5, threshold="lam/mu", mu_width="head"))
    assert 4 * 0.5 * level < 10  # t = lam / mu = 4 lam mean |K|
    assert float(found.f1) == 1
    unit = plant(65, 64, SEEDS[:2])
    factors = torch.full((2, 1), 4.0, dtype=torch.float64)
    assert torch.allclose(textbook(unit).f1, textbook(unit.scaled(factors)).f1)
    one_step = paper_rule(Pursuit(1))
    assert torch.equal(pursue(unit, one_step).f1, pursue(unit.scaled(factors), one_step).f1)
    released = Pursuit(1)
    assert float((pursue(unit, released).f1 - pursue(unit.scaled(factors), released).f1).min()) > 0.1


def layer(tokens=65, width=64, heads=2, images=3, std=0.5, **options):
    k = randn(images, heads, tokens, width, std=std)
    ids = tuple(str(image) for image in range(images))
    return Layer(0, "made", RPCAttention(heads * width, heads, **options), k, k, k, k, k, tuple(range(heads)), ids, 0)


def judged(one):
    results, verdict = judge("planted", one)
    return {name: found.estimate.value for name, found in results.statistics.items()}, verdict


def test_the_released_pursuit_misses_what_textbook_pursuit_finds():
    found, verdict = judged(layer())
    assert verdict.outcome == "not supported"
    assert found["f1_textbook"] == pytest.approx(1)
    assert found["error_textbook"] < 1e-5
    assert found["f1"] < 0.5
    assert found["error_nothing"] == pytest.approx(math.sqrt(0.05) * 10, rel=0.2)  # |S_0| / |L_0|
    found, verdict = judged(layer(tokens=4, width=4))
    assert found["f1_textbook"] < 0.8
    assert verdict.outcome == "not testable"


@pytest.mark.parametrize(("lam", "outcome"), [(0.3, "not supported"), (0.6, "supported"), (1.0, "supported")])
def test_shrinking_alone_finds_gross_outliers_once_its_threshold_is_large_enough(lam, outcome):
    """So finding them says nothing about the low-rank part, which is measured beside it."""
    found, verdict = judged(layer(iterations=1, lam=lam, threshold="lam/mu", mu_width="head"))
    assert verdict.outcome == outcome
    assert found["error"] > 0.5
    assert found["residual_textbook"] <= 1e-7
