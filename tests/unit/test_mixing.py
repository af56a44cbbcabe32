import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.rpc import Iterate, Pursuit
from robustbench_kpca.models.mixing import (
    at_most,
    attention_weights,
    densities,
    gradient_norms,
    mixing,
    rpc_layers,
    trace_model,
    trace_pursuit,
)

DOUBLE = torch.float64


@pytest.fixture(scope="module")
def digits():
    images, labels = load_data("digits").tensors()
    return images[:6], labels[:6]


def randn(*shape, seed=0):
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def iterate(k, v=None, *, low_rank=None, sparse=None, causal=False):
    v = torch.ones_like(k) if v is None else v
    zero = torch.zeros_like(k)
    given = [zero if part is None else part for part in (low_rank, sparse)]
    return Iterate(2, k, v, k, k, *given, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_weights_are_the_softmax(causal):
    q, k, v = (randn(2, 3, 7, 4, seed=seed) for seed in range(3))
    weights = attention_weights(q, k, causal=causal)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3, 7, dtype=DOUBLE))
    assert float(weights.min()) >= 0
    assert torch.allclose(weights @ v, F.scaled_dot_product_attention(q, k, v, is_causal=causal))
    assert bool((weights.triu(1) == 0).all()) is causal


def test_attention_weights_by_hand():
    q, k = (
        torch.tensor(rows, dtype=torch.float32).view(1, 1, 2, 4) for rows in ([[2, 0, 0, 0]] * 2, [[1] * 4, [0] * 4])
    )
    expected = math.e / (1 + math.e)  # scores 2 * 1 / sqrt(4) and 0
    assert attention_weights(q, k)[0, 0].flatten().tolist() == pytest.approx([expected, 1 - expected] * 2)


def test_tokens_that_attend_to_themselves():
    found = mixing(iterate(40 * torch.eye(4, dtype=DOUBLE).expand(2, 3, 4, 4)))
    assert (found.diagonal, found.max_attention, found.entropy) == (1, 1, 0)


def test_tokens_that_attend_to_all():
    found = mixing(iterate(torch.ones(2, 3, 5, 4, dtype=DOUBLE)))
    assert (found.diagonal, found.max_attention) == (pytest.approx(1 / 5), pytest.approx(1 / 5))
    assert found.entropy == pytest.approx(math.log(5))
    seen = mixing(iterate(torch.ones(2, 3, 5, 4, dtype=DOUBLE), causal=True))
    assert seen.entropy == pytest.approx(sum(math.log(t) for t in range(1, 6)) / 5)
    assert seen.diagonal == pytest.approx(sum(1 / t for t in range(1, 6)) / 5)


def test_tokens_that_attend_to_one_other():
    k = torch.tensor([[1.0, 0.0], [100.0, 0.0]], dtype=DOUBLE).view(1, 1, 2, 2)
    found = mixing(iterate(k))
    assert (found.diagonal, found.max_attention) == (pytest.approx(0.5), pytest.approx(1))


def test_density_residual_and_distance_by_hand():
    k, v = torch.tensor([3.0, 0.0, 0.0, 4.0]).view(1, 1, 2, 2), torch.tensor([0.0, 5.0, 12.0, 0.0]).view(1, 1, 2, 2)
    low, sparse = torch.tensor([0.0, 0.0, 0.0, 1.0]).view(1, 1, 2, 2), torch.tensor([3.0, 0, 0, 0]).view(1, 1, 2, 2)
    found = mixing(iterate(k, v, low_rank=low, sparse=sparse), block=3)
    assert (found.block, found.iteration, found.density) == (3, 2, 0.25)
    assert found.residual == pytest.approx(3 / 5)
    assert found.value_distance == pytest.approx(math.sqrt(25 + 144 + 1) / 13)


def test_a_pursuit_is_traced_from_plain_attention_on():
    k, v = 2 * randn(2, 3, 17, 16), randn(2, 3, 17, 16, seed=1)
    found = trace_pursuit(Pursuit(4, 0.5), k, v, block=1)
    assert [(step.block, step.iteration) for step in found] == [(1, n) for n in range(5)]
    assert found[0].density == 0
    assert [step.density for step in found][1:] == [
        trace_pursuit(Pursuit(n, 0.5), k, v)[-1].density for n in (1, 2, 3, 4)
    ]
    bound = 0.5 * Pursuit().mu(k)
    assert found[1].density == pytest.approx(float((k.abs() > bound).double().mean()))
    assert found[0].value_distance == pytest.approx(
        float((F.scaled_dot_product_attention(k, k, v) - v).norm() / v.norm())
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rpc_symvit_digits", [(0, n) for n in (1, 2, 3, 4)]),
        ("rpc_symvit_all_digits", [(block, n) for block in range(4) for n in (1, 2)]),
        ("symvit_digits", []),
    ],
)
def test_models_are_traced(digits, name, expected):
    model = load_model(name)
    before = model(digits[0])
    found = trace_model(model, digits[0])
    assert [(step.block, step.iteration) for step in found] == expected
    last = [step.density for step in found if step.iteration == expected[-1][1]]
    assert densities(model, digits[0]) == last
    assert all(layer.observer is None for layer in rpc_layers(model))
    assert torch.equal(model(digits[0]), before)


def test_the_trace_is_that_of_the_layers_own_keys(digits):
    model = load_model("rpc_symvit_digits")
    inputs = []
    hook = model.blocks[0].attn.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    found = trace_model(model, digits[0])
    hook.remove()
    layer = model.blocks[0].attn
    with torch.no_grad():
        _, k, v = layer.queries_keys_values(inputs[0])
        assert trace_pursuit(layer.pursuit, k, v)[1:] == found


def test_observers_go_even_after_a_failure(fork):
    model = create_model("rpc_symvit_digits")
    with pytest.raises(BadInputError, match="16 x 16"):
        trace_model(model, torch.zeros(1, 3, 16, 16))
    assert all(layer.observer is None for layer in rpc_layers(model))


def test_asymmetric_and_fan_layers_are_found(fork):
    for name, count in (("rpc_vit_digits", 1), ("rpc_fan_digits", 1), ("rpc_symvit_all_digits", 4), ("vit_digits", 0)):
        assert len(rpc_layers(create_model(name))) == count
    found = trace_model(create_model("rpc_vit_digits"), torch.zeros(1, 3, 32, 32))
    assert [step.iteration for step in found] == [1, 2, 3, 4]


def test_gradient_norms_equal_autograd_and_finite_differences(digits):
    images, labels = digits[0][:1].double(), digits[1][:1]
    model = load_model("rpc_symvit_digits").double()
    norms = gradient_norms(model, images, labels)
    assert len(norms) == 5
    assert images.requires_grad is False
    assert all(parameter.grad is None for parameter in model.parameters())
    for n, norm in enumerate(norms):
        model.blocks[0].attn.pursuit = Pursuit(n)
        x = images.clone().requires_grad_()
        F.cross_entropy(model(x), labels).backward()
        assert norm == pytest.approx(float(x.grad.norm()), rel=1e-9)
        ascent = x.grad / x.grad.norm()
        with torch.no_grad():
            up, down = (F.cross_entropy(model(images + step * ascent), labels) for step in (1e-5, -1e-5))
        assert norm == pytest.approx(float(up - down) / 2e-5, rel=1e-4)


def test_gradient_norms_are_means_over_images(digits):
    images, labels = digits
    model = load_model("rpc_symvit_digits")
    each = [gradient_norms(model, images[i : i + 1], labels[i : i + 1]) for i in range(len(images))]
    for n, norm in enumerate(gradient_norms(model, images, labels)):
        assert norm == pytest.approx(sum(row[n] for row in each) / len(images), rel=1e-4)
    assert len(gradient_norms(load_model("symvit_digits"), images, labels)) == 1


def test_without_iterations_a_model_is_its_symmetric_twin(fork, digits):
    rpc = load_model("rpc_symvit_digits")
    plain = create_model("symvit_digits")
    plain.load_state_dict(rpc.state_dict())
    with at_most(rpc, 0) as bare:
        assert bare is rpc
        assert torch.allclose(bare(digits[0]), plain(digits[0]), atol=1e-6)
    assert not torch.allclose(rpc(digits[0]), plain(digits[0]), atol=1e-2)


def test_at_most_never_adds_and_always_restores():
    model = load_model("rpc_symvit_all_digits")
    own = [layer.pursuit for layer in rpc_layers(model)]
    with at_most(model, 7):
        assert [layer.pursuit for layer in rpc_layers(model)] == own

    def fail():
        with at_most(model, 1):
            assert {layer.pursuit.iterations for layer in rpc_layers(model)} == {1}
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert [layer.pursuit for layer in rpc_layers(model)] == own


def test_padding_has_no_part_in_what_is_measured():
    """Two sequences of 5 and 7 tokens, padded to 9, are measured as each of them alone."""
    pursuit, lengths, found = Pursuit(iterations=2, mu_width="head"), (5, 7), {}
    k, v = randn(2, 3, 9, 4), randn(2, 3, 9, 4, seed=1)
    mask = (torch.arange(9) < torch.tensor(lengths)[:, None])[:, None, None]
    padded = []
    pursuit(k, v, mask=mask, observer=lambda one: padded.append(mixing(one)))
    for row, length in enumerate(lengths):
        alone = k[row : row + 1, :, :length], v[row : row + 1, :, :length]
        pursuit(*alone, observer=lambda one, row=row: found.setdefault(row, []).append(mixing(one)))
    for number, one in enumerate(padded):
        for name in ("density", "max_attention", "diagonal", "entropy"):
            means = [getattr(found[row][number], name) for row in (0, 1)]
            expected = sum(n * mean for n, mean in zip(lengths, means, strict=True)) / sum(lengths)
            assert getattr(one, name) == pytest.approx(expected)
        assert one.value_distance > 0
