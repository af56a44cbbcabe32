"""The convolutional stem against its layers written out, and what it may be put into."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.vit import conv_stem


@pytest.fixture
def stem(fork):
    return conv_stem(4, 12)


def test_it_is_its_layers_one_after_the_other(stem):
    x = torch.rand(2, 3, 16, 24)
    state, found = stem.state_dict(), x
    for conv, norm in ((0, 1), (3, 4)):
        found = F.conv2d(found, state[f"{conv}.weight"], state[f"{conv}.bias"], stride=2, padding=1)
        spread = found.var(1, keepdim=True, unbiased=False) + 1e-6
        found = (found - found.mean(1, keepdim=True)) / spread.sqrt()
        found = found * state[f"{norm}.weight"][:, None, None] + state[f"{norm}.bias"][:, None, None]
        found = 0.5 * found * (1 + torch.erf(found / 2**0.5))
    found = F.conv2d(found, state["6.weight"], state["6.bias"])
    assert found.shape == (2, 12, 4, 6)
    assert torch.allclose(stem(x), found, atol=1e-5)


def test_a_small_vit_has_the_widths_of_its_authors(fork):
    widths = [layer.out_channels for layer in conv_stem(16, 384) if isinstance(layer, torch.nn.Conv2d)]
    assert widths == [48, 96, 192, 384, 384]


@pytest.mark.parametrize("name", ["vit_digits", "rpc_symvit_digits", "primal_vit_digits"])
def test_every_vit_can_have_it(fork, name):
    model = create_model(name, stem="conv")
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert create_model(**model.config).state_dict().keys() == model.state_dict().keys()
    assert model.config["stem"] == "conv"
    assert "stem" not in create_model(name, stem="patch").config


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit_digits", {"stem": "cubist"}, "patch or conv"),
        ("vit_digits", {"stem": "conv", "patch_size": 1}, "power of 2"),
        ("vit_digits", {"stem": "conv", "patch_size": 8, "embed_dim": 42, "num_heads": 3}, "embed_dim 42"),
        ("fan_digits", {"stem": "conv"}, "no option 'stem'"),
    ],
)
def test_what_does_not_fit_is_refused(fork, name, options, message):
    with pytest.raises(BadInputError, match=message):
        create_model(name, **options)
