import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.rpc import Pursuit
from robustbench_kpca.models.mixing import at_most, attention_weights, densities, density, rpc_layers

DOUBLE = torch.float64


@pytest.fixture(scope="module")
def digits():
    images, labels = load_data("digits").tensors()
    return images[:6], labels[:6]


def randn(*shape, seed=0):
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def test_attention_weights_are_the_softmax():
    q, k, v = (randn(2, 3, 7, 4, seed=seed) for seed in range(3))
    weights = attention_weights(q, k)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3, 7, dtype=DOUBLE))
    assert float(weights.min()) >= 0
    assert torch.allclose(weights @ v, F.scaled_dot_product_attention(q, k, v))
    q, k = (
        torch.tensor(rows, dtype=torch.float32).view(1, 1, 2, 4) for rows in ([[2, 0, 0, 0]] * 2, [[1] * 4, [0] * 4])
    )
    expected = math.e / (1 + math.e)  # scores 2 * 1 / sqrt(4) and 0
    assert attention_weights(q, k)[0, 0].flatten().tolist() == pytest.approx([expected, 1 - expected] * 2)


@pytest.mark.parametrize(("name", "layers"), [("rpc_symvit_digits", 1), ("rpc_symvit_all_digits", 4)])
def test_densities_are_those_of_the_last_iteration_and_observers_go(digits, name, layers):
    model = load_model(name)
    before = model(digits[0])
    found = densities(model, digits[0])
    assert len(found) == layers
    assert any(found)
    assert all(layer.observer is None for layer in rpc_layers(model))
    assert torch.equal(model(digits[0]), before)
    with pytest.raises(BadInputError, match="16 x 16"):
        densities(model, torch.zeros(1, 3, 16, 16))
    assert all(layer.observer is None for layer in rpc_layers(model))


def test_layers_are_found_and_without_iterations_a_model_is_its_twin(fork, digits):
    for name, count in (("rpc_vit_digits", 1), ("rpc_fan_digits", 1), ("rpc_symvit_all_digits", 4), ("vit_digits", 0)):
        assert len(rpc_layers(create_model(name))) == count
    assert len(densities(create_model("rpc_vit_digits"), torch.zeros(1, 3, 32, 32))) == 1
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


def test_padding_has_no_part_in_the_density():
    """Two sequences of 5 and 7 tokens, padded to 9, are measured as each of them alone."""
    pursuit, lengths, alone = Pursuit(iterations=2, mu_width="head"), (5, 7), {}
    k, v = randn(2, 3, 9, 4), randn(2, 3, 9, 4, seed=1)
    mask = (torch.arange(9) < torch.tensor(lengths)[:, None])[:, None, None]
    padded = []
    pursuit(k, v, mask=mask, observer=lambda step: padded.append(density(step)))
    for row, length in enumerate(lengths):
        rows = k[row : row + 1, :, :length], v[row : row + 1, :, :length]
        pursuit(*rows, observer=lambda step, row=row: alone.setdefault(row, []).append(density(step)))
    for number, share in enumerate(padded):
        expected = sum(length * alone[row][number] for row, length in enumerate(lengths)) / sum(lengths)
        assert share == pytest.approx(expected)
