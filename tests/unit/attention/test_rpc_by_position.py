"""Causal RPC attention, position by position: every word has its own pursuit, over the words up to it, in plain loops.

The oracle is written from Algorithm 1 of Teo & Nguyen (2024), arXiv:2406.13762, with numbers and lists alone. For the
word at t it takes the keys up to t and nothing else, so it cannot see a later word. Each of these keys has the mu of
the keys up to it; the shrinkage is lam * mu.
"""

import math

import pytest
import torch

from robustbench_kpca.attention.rpc import RPCAttention
from robustbench_kpca.attention.symmetric import SymmetricAttention

DIM, HEADS, TOKENS = 6, 2, 9
WIDTH = DIM // HEADS


def mu_of(keys, width):
    """Return the number of keys times the width, over four times the sum of all their absolute values."""
    total = sum(abs(number) for key in keys for number in key)
    return len(keys) * width / (4 * total)


def shrunk(number, bound):
    return math.copysign(max(abs(number) - bound, 0.0), number)


def mixed(inner, values):
    """Return of every word the mean of the values up to it, by the softmax of its products with the keys up to it."""
    found = []
    for place, row in enumerate(inner):
        scores = [sum(a * b for a, b in zip(row, inner[j], strict=True)) / math.sqrt(WIDTH) for j in range(place + 1)]
        weights = [math.exp(score - max(scores)) for score in scores]
        found.append(
            [sum(w * values[j][d] for j, w in enumerate(weights)) / sum(weights) for d in range(len(values[0]))]
        )
    return found


def at_its_end(keys, values, *, iterations, lam, sign, width):
    words, columns = range(len(keys)), range(WIDTH)
    mu = [mu_of(keys[: place + 1], width) for place in words]
    low = [[0.0] * WIDTH for _ in words]
    y = [[0.0] * WIDTH for _ in words]
    for _ in range(iterations):
        sparse = [[shrunk(keys[t][d] - low[t][d] + y[t][d] / mu[t], lam * mu[t]) for d in columns] for t in words]
        inner = [[keys[t][d] - sparse[t][d] + sign * y[t][d] / mu[t] for d in columns] for t in words]
        low = mixed(inner, values)
        y = [[y[t][d] + mu[t] * (keys[t][d] - low[t][d] - sparse[t][d]) for d in columns] for t in words]
    return low[-1]


def by_position(layer, x, **how):
    both = [layer.qkv.weight[rows] @ x.T for rows in (slice(DIM), slice(DIM, 2 * DIM))]  # keys, then values
    found = []
    for place in range(TOKENS):
        joined = []
        for head in range(HEADS):
            rows = slice(head * WIDTH, (head + 1) * WIDTH)
            keys, values = ([column[rows].tolist() for column in part.T[: place + 1]] for part in both)
            joined += at_its_end(keys, values, **how)
        found.append(layer.proj.weight @ torch.tensor(joined, dtype=x.dtype))
    return torch.stack(found)


def built(kind=RPCAttention, **how):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(DIM, HEADS, qkv_bias=False, proj_bias=False, **how).eval()


def text():
    return torch.randn(2, TOKENS, DIM, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mu_width", ["embed", "head"])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("iterations", "lam"), [(1, 0.5), (2, 0.3), (4, 4.0), (4, 0.05)])
def test_a_layer_is_the_loop_over_positions(iterations, lam, sign, mu_width):
    layer = built(iterations=iterations, lam=lam, dual_sign=sign, mu_width=mu_width)
    x, width = text(), DIM if mu_width == "embed" else WIDTH
    with torch.no_grad():
        found = layer(x, is_causal=True)
        expected = torch.stack(
            [by_position(layer, one, iterations=iterations, lam=lam, sign=sign, width=width) for one in x]
        )
    assert float((found - expected).abs().max()) < 1e-5


def test_symmetric_attention_and_the_mu_of_the_window():
    # The oracle's own attention, against the layer that has none of the pursuit.
    plain, x = built(SymmetricAttention), text()
    with torch.no_grad():
        found = plain(x, is_causal=True)[0]
        expected = by_position(plain, x[0], iterations=1, lam=1e9, sign=-1, width=DIM)  # nothing is clipped: M = K
    assert float((found - expected).abs().max()) < 1e-5
    # Where keys are clipped, one mu for the whole window gives other numbers: the test above could fail.
    layer, x = built(iterations=4, lam=0.3, mu_span="window"), text()
    with torch.no_grad():
        expected = by_position(layer, x[0], iterations=4, lam=0.3, sign=-1, width=DIM)
        found = layer(x, is_causal=True)[0]
    assert float((found - expected).abs().max()) > 1e-3
    assert float((found[-1] - expected[-1]).abs().max()) > 1e-4, "earlier words have another mu, too"
