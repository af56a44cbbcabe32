import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model
from robustbench_kpca.attention.rpc import RPCAttention, principal_attention_pursuit
from robustbench_kpca.attention.symmetric import SymmetricAttention
from robustbench_kpca.errors import BadInputError


def literal(k, v, n, lam, width, threshold):
    """Algorithm 1 with the dual variable Y, line by line (and nothing shared with the implementation)."""
    tokens, dim = k.shape[-2:]
    mu = tokens * width / (4 * k.abs().sum((-2, -1), keepdim=True))
    bound = lam * mu if threshold == "lam*mu" else lam / mu
    low = y = torch.zeros_like(k)
    for _ in range(n):
        arg = k - low + y / mu
        sparse = arg.sign() * (arg.abs() - bound).clamp_min(0)
        inner = k - sparse - y / mu
        low = ((inner @ inner.transpose(-2, -1)) / math.sqrt(dim)).softmax(-1) @ v
        y = y + mu * (k - low - sparse)
    return low


def keys_and_values(seed=0, std=1.0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, 3, 17, 16, generator=rng, dtype=dtype) * s for s in (std, 1.0))


@pytest.mark.parametrize("threshold", ["lam*mu", "lam/mu"])
@pytest.mark.parametrize("n", [1, 2, 4, 6])
@pytest.mark.parametrize("std", [0.3, 1.0, 4.0])
def test_the_scaled_form_equals_the_algorithm(n, std, threshold):
    k, v = keys_and_values(std=std)
    ours = principal_attention_pursuit(k, v, iterations=n, lam=4.0, width=48, threshold=threshold)
    theirs = literal(k, v, n, 4.0, 48, threshold)
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-10)


def test_without_a_sparse_part_one_iteration_is_symmetric_attention():
    k, v = keys_and_values()
    ours = principal_attention_pursuit(k, v, iterations=1, lam=math.inf, width=48)
    assert torch.allclose(ours, F.scaled_dot_product_attention(k, k, v), atol=1e-12)


def test_the_second_iteration_attends_to_the_first_ones_output():
    k, v = keys_and_values()
    first = principal_attention_pursuit(k, v, iterations=1, lam=math.inf, width=48)
    second = principal_attention_pursuit(k, v, iterations=2, lam=math.inf, width=48)
    assert torch.allclose(second, F.scaled_dot_product_attention(first, first, v), atol=1e-12)


def test_without_a_sparse_part_gradients_are_those_of_the_limit():
    grads = []
    for lam in (math.inf, 1e9):
        k, v = (t.clone().requires_grad_() for t in keys_and_values())
        principal_attention_pursuit(k, v, iterations=3, lam=lam, width=48).square().sum().backward()
        grads.append(k.grad)
    assert torch.allclose(grads[0], grads[1], rtol=1e-9, atol=1e-12)


def test_gradients_flow_through_mu_as_released():
    k, v = (t[:1, :1, :4, :3].clone().requires_grad_() for t in keys_and_values(std=2.0))
    assert torch.autograd.gradcheck(
        lambda k, v: principal_attention_pursuit(k, v, iterations=3, lam=0.7, width=6), (k, v)
    )


@pytest.mark.parametrize("scale", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_keys_stay_finite(scale, dtype):
    k, v = (t.to(dtype) for t in keys_and_values(dtype=torch.float32))
    k = (k * scale).requires_grad_()
    out = principal_attention_pursuit(k, v, iterations=4, lam=4.0, width=48)
    out.sum().backward()
    assert bool(torch.isfinite(out).all())
    assert bool(torch.isfinite(k.grad).all())


def test_the_width_in_mu(fork):
    k, v = keys_and_values(dtype=torch.float32)
    for mu_width, width in (("embed", 48), ("head", 16)):
        layer = RPCAttention(48, 3, mu_width=mu_width, lam=1.0)
        ours = layer.attend(k, v)
        assert torch.allclose(ours, literal(k, v, 4, 1.0, width, "lam*mu"), atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"iterations": 0}, {"lam": 0}, {"lam": -1}, {"threshold": "mu"}, {"mu_width": "x"}]
)
def test_bad_options(fork, options):
    with pytest.raises(BadInputError, match="expected"):
        RPCAttention(48, 3, **options)


def test_heads_must_divide_the_width():
    with pytest.raises(BadInputError, match="48 with 5 heads"):
        SymmetricAttention(48, 5)


def test_published_parameter_count(fork):
    model = create_model("symvit_tiny_patch16_224")
    assert sum(p.numel() for p in model.parameters()) == 5_272_744  # the paper's "5.2 M"


def test_rpc_adds_no_parameter_and_shares_the_initialisation(fork):
    plain = create_model("symvit_digits")
    torch.manual_seed(0)
    robust = create_model("rpc_symvit_all_digits")
    assert list(plain.state_dict()) == list(robust.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), robust.parameters(), strict=True))
    assert "blocks.0.attn.qkv.weight" in robust.state_dict()
    assert [type(block.attn).__name__ for block in robust.blocks] == ["RPCAttention"] * 4
