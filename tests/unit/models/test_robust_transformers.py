"""Networks of others that are built here for a file of weights: their tensors are those of the authors' code.

Numbers and digests are of the models that RobustBench 1.1.1 itself built beside timm 1.0.31. The page of CBSA states
1.8 and 6.7 million parameters.
"""

import pytest
import torch
from safetensors.torch import save_file
from timm.layers import LayerNorm2d
from torch.nn import functional

from robustbench_kpca import load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import sha256
from robustbench_kpca.models import robust_transformers
from robustbench_kpca.models.robust_transformers import NETWORKS, ConvStem, Network, build
from robustbench_kpca.models.source import class_names_of, stated_view
from robustbench_kpca.models.sources import cbsa

SINGH, DEBENEDETTI = "imagenet/Linf/Singh2023Revisiting_{}-ConvStem", "{}/Linf/Debenedetti2022Light_XCiT-{}12"
TENSORS = {
    SINGH.format("ViT-S"): (168, 22777576, "634f893e128ad7ec"),
    SINGH.format("ViT-B"): (168, 87147112, "98306c3537974e5c"),
    SINGH.format("ConvNeXt-T"): (186, 28627432, "aa73af500eafcb73"),
    SINGH.format("ConvNeXt-S"): (348, 50261992, "aa0242b521d40c7c"),
    SINGH.format("ConvNeXt-B"): (352, 88753416, "fce6ffd8964da2fe"),
    SINGH.format("ConvNeXt-L"): (352, 198134680, "773f6edcda3ae61e"),
    DEBENEDETTI.format("imagenet", "S"): (391, 26253304, "fbd09171e0c25e37"),
    DEBENEDETTI.format("cifar10", "S"): (391, 25872154, "a9d799db7a5ef0b1"),
    DEBENEDETTI.format("cifar100", "S"): (391, 25906804, "bb61345465f7535d"),
    DEBENEDETTI.format("imagenet", "M"): (391, 46401160, "65a55a48f6215b24"),
    DEBENEDETTI.format("cifar10", "M"): (391, 45893290, "edffb59e46a10df6"),
    DEBENEDETTI.format("cifar100", "M"): (391, 45939460, "8f4939bfeb12561e"),
    DEBENEDETTI.format("imagenet", "L"): (391, 103792648, "cdbd3a7870612f84"),
    DEBENEDETTI.format("cifar10", "L"): (391, 103031338, "dde4f62a6f64ac73"),
    DEBENEDETTI.format("cifar100", "L"): (391, 103100548, "998d0f959168e278"),
}


def tensors(model):
    shapes = sorted((name, tuple(value.shape)) for name, value in model.state_dict().items())
    digest = sha256("\n".join(f"{name} {shape}" for name, shape in shapes).encode())[:16]
    return len(shapes), sum(value.numel() for value in model.parameters()), digest


@pytest.mark.parametrize("path", NETWORKS)
def test_names_and_shapes_are_those_of_robustbench(path):
    with torch.device("meta"):  # no memory, and no time for initial weights
        model = build(path, pretrained=False)
    assert tensors(model) == TENSORS[path]
    if "cifar" in path:
        assert model.patch_embed.proj(torch.zeros(1, 3, 32, 32, device="meta")).shape[2:] == (8, 8)
        return
    crop = "224" if "XCiT" in path else "256"
    assert stated_view(model).how == f"bicubic 224 of {crop}, as torchvision"
    assert class_names_of(model)[0] == "n01440764"


def test_a_file_of_the_zoo_loads_with_the_normalisation_that_it_holds(tmp_path, monkeypatch):
    """RobustBench wraps such a network: `normalize.mean`, `normalize.std` and `model.` before all other names."""
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    small = Network(lambda _: ConvStem(LayerNorm2d, (4, 6), (2, 2), 5), (mean, std), None, 5)
    monkeypatch.setitem(robust_transformers.NETWORKS, "imagenet/Linf/Singh2023Revisiting_Small", small)
    with torch.random.fork_rng():
        untrained = build("imagenet/Linf/Singh2023Revisiting_Small", pretrained=False).state_dict()
        state = {name: torch.randn_like(value) for name, value in untrained.items()}
        images = torch.rand(2, 3, 16, 16)
    around = {"normalize.mean": torch.tensor(mean), "normalize.std": torch.tensor(std)}
    whole = around | {f"model.{name}": value for name, value in state.items()}
    save_file({f"module.{name}": value for name, value in whole.items()}, tmp_path / "x.safetensors")
    model = load_model("robustbench:Singh2023Revisiting_Small", tmp_path / "x.safetensors")
    x = (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    for place in (0, 3):
        weight, bias, scale, shift = (
            state[f"stem.{at}.{name}"] for at in (place, place + 1) for name in ("weight", "bias")
        )
        x = functional.conv2d(x, weight, bias, stride=2, padding=1)
        x = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        x = functional.gelu(scale.view(-1, 1, 1) * x + shift.view(-1, 1, 1))
    x = functional.conv2d(x, state["stem.6.weight"], state["stem.6.bias"])
    torch.testing.assert_close(model(images), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "word"),
    [("Singh2023Revisiting_ViT-S-ConvStem", "--checkpoint FILE"), ("Debenedetti2022Light_XCiT-S12", "cifar100/Linf/")],
)
def test_a_name_needs_a_file_and_one_data_set(name, word):
    with pytest.raises(BadInputError, match=word):
        load_model(f"robustbench:{name}")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("CBT-T", (150, 1789192, "03ddcf6d3d60a0c5")), ("CBT-S", (150, 6667048, "6e5e0ca7567c9de7"))],
)
def test_names_and_shapes_are_those_of_cbsa(name, expected):
    with torch.device("meta"):
        assert tensors(cbsa.build(name, False, {})) == expected


def test_cbsa_of_equal_tokens_is_known():
    """Where all n tokens are w, each of 64 representatives is (1 + s) w, and each token gets 64 / n of that."""
    with torch.random.fork_rng():
        attention, token = cbsa.ContractAndBroadcast(6, 2), torch.randn(6)
        attention.step_x.data, attention.step_rep.data = torch.randn(2, 2, 1, 1).unbind(0)
    n = 17
    found = attention(token.expand(1, n, 6))
    w = attention.proj(token).view(2, 3)
    steps = attention.step_x[:, 0] * (1 + attention.step_rep[:, 0]) * 64 / n
    torch.testing.assert_close(found, attention.to_out((steps * w).flatten()).expand_as(found))
    x = torch.linspace(-1, 1, 8).view(1, 2, 4)
    torch.testing.assert_close(cbsa.SparseStep(4)(x), (x - 0.01).clamp_min(0))  # W = 1: it is a code of itself
