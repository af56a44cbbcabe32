"""The transformer, its parts and the stem against timm's: the same bits."""

import inspect

import pytest
import timm.layers
import torch
from timm.data import constants
from timm.models import xcit as theirs
from timm.models.vision_transformer import Attention, VisionTransformer
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.shared.heads import Standardised
from robustbench_kpca.attention.softmax import SoftmaxAttention
from robustbench_kpca.models import xcit as ours
from robustbench_kpca.models.families import FAMILIES, NORMALISATIONS
from robustbench_kpca.models.transformer import ViT, resample_positions
from robustbench_kpca.models.vit import ChannelNorm, conv_stem
from robustbench_kpca.training.recipe import load_recipe

SHAPE = {
    "img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 3, "num_heads": 2, "num_classes": 5, "mlp_ratio": 2.5
}  # fmt: skip


def built(kind, *arguments, **options):
    torch.manual_seed(3)
    return kind(*arguments, **options)


def require_same_state(first, second):
    first, second = first.state_dict(), second.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def passed(model, inputs, *arguments):
    """Output, gradient by the inputs, and gradients by the parameters, under one seed."""
    torch.manual_seed(5)
    x = inputs.clone().requires_grad_()
    out = model(x, *arguments)
    out.square().sum().backward()
    return [out, x.grad, *(value.grad for _, value in sorted(model.named_parameters()))]


def require_same_passes(first, second, *arguments):
    for a, b in zip(passed(first, *arguments), passed(second, *arguments), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", [{}, {"drop_path_rate": 0.4, "reg_tokens": 1}])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_the_vit_is_timms_bit_for_bit(fork, training, options):
    first, second = built(ViT, **SHAPE, **options), built(VisionTransformer, **SHAPE, **options)
    require_same_state(first, second)
    require_same_passes(first.train(training), second.train(training), torch.rand(4, 3, 16, 16))
    x = torch.rand(4, 3, 16, 16)
    assert torch.equal(first.eval().forward_features(x), second.eval().forward_features(x))
    assert first.no_weight_decay() == second.no_weight_decay() - {"dist_token"}


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "norm_layer": torch.nn.LayerNorm}])
def test_softmax_attention_is_timms_bit_for_bit(fork, options):
    first, second = (built(kind, 12, 3, qkv_bias=True, **options) for kind in (SoftmaxAttention, Attention))
    require_same_state(first, second)
    require_same_passes(first, second, torch.rand(2, 7, 12))
    mask = torch.arange(7)[None, None, None] < torch.tensor([4, 7])[:, None, None, None]
    require_same_passes(first, second, torch.rand(2, 7, 12), mask)
    require_same_passes(first, second, torch.rand(2, 7, 12), None, True)


def test_queries_and_keys_are_standardised_without_parameters(fork):
    """Of two entries a > b, the standardised ones are 1/sqrt(2) and -1/sqrt(2), in closed form."""
    plain, layer = (built(SoftmaxAttention, 6, 3, qkv_bias=True, qk_norm=kind) for kind in (False, "standardised"))
    require_same_state(plain, layer)
    x = torch.rand(2, 7, 6)
    for raw, seen in zip(plain.queries_keys_values(x)[:2], layer.queries_keys_values(x)[:2], strict=True):
        sign = (raw[..., :1] - raw[..., 1:]).sign()
        torch.testing.assert_close(seen, torch.cat([sign, -sign], -1) / 2**0.5)
    wide = built(SoftmaxAttention, 24, 3, qkv_bias=True, qk_norm="standardised").bfloat16()
    q, k, _ = wide.queries_keys_values(torch.rand(2, 7, 24, dtype=torch.bfloat16))
    for seen in (q, k):
        assert seen.dtype == torch.bfloat16
        torch.testing.assert_close(seen.float().square().sum(-1), torch.full((2, 3, 7), 7.0), atol=0.05, rtol=0)
    assert not Standardised()(torch.ones(1, 1, 2, 4)).any(), "a constant token becomes 0"
    with pytest.raises(BadInputError, match="qk_norm = 'layer'; expected true, false or 'standardised'"):
        SoftmaxAttention(6, 3, qk_norm="layer")


@pytest.mark.parametrize(("size", "lr", "least"), [("tiny", 2e-4, 1e-5), ("digits", 2e-3, None)])
def test_the_training_of_figure_1_is_that_of_a_vit_but_for_what_the_released_code_changes(size, lr, least):
    """Released: 6 heads, 1e-4 for 512 images of 1,024, no warm-up; q and k standardised in every pass."""
    plain, changed = (load_recipe(f"{kind}_{size}")[1] for kind in ("vit", "standardised_vit"))
    asked = {"num_heads": 6, "attention": "softmax", "qk_norm": "standardised"}
    assert changed.model_options == plain.model_options | asked
    assert (changed.lr, changed.warmup_epochs, changed.min_lr) == (lr, 0, least)
    same = {"title", "model_options", "lr", "warmup_epochs", "warmup_lr"}
    assert changed.model_dump(exclude=same) == plain.model_dump(exclude=same)


@pytest.mark.parametrize(
    ("first", "second", "inputs"),
    [
        pytest.param(
            lambda: ours.ClassBlock(8, 2, 2.0),
            lambda: theirs.ClassAttentionBlock(
                8, 2, 2.0, qkv_bias=True, norm_layer=timm.layers.LayerNorm, eta=1.0, tokens_norm=True
            ),
            (torch.rand(2, 6, 8),), id="class attention",
        ),
        pytest.param(
            lambda: ours.LocalPatchInteraction(8), lambda: theirs.LPI(8), (torch.rand(2, 6, 8), 2, 3), id="local"
        ),
        pytest.param(
            lambda: ours.halving_convolution(3, 8), lambda: theirs.conv3x3(3, 8, 2), (torch.rand(2, 3, 6, 6),),
            id="convolution",
        ),
        pytest.param(
            lambda: ChannelNorm(8, eps=1e-6), lambda: timm.layers.LayerNorm2d(8), (torch.rand(2, 8, 3, 3),), id="norm"
        ),
    ],
)  # fmt: skip
def test_parts_are_timms_bit_for_bit(fork, first, second, inputs):
    first, second = built(first), built(second)
    require_same_state(first, second)
    require_same_passes(first, second, *inputs)
    require_same_passes(first.eval(), second.eval(), *inputs)


def test_positions_and_normalisations_are_timms(fork):
    first, second = built(ours.FourierPositions, 8), built(theirs.PositionalEncodingFourier, dim=8)
    require_same_state(first, second)
    assert torch.equal(first(3, 5), second(1, 3, 5))
    assert NORMALISATIONS == {
        "deit": (constants.IMAGENET_DEFAULT_MEAN, constants.IMAGENET_DEFAULT_STD),
        "vit": (constants.IMAGENET_INCEPTION_MEAN, constants.IMAGENET_INCEPTION_STD),
    }
    known = inspect.signature(SoftmaxAttention).parameters
    extra = set(inspect.signature(Attention).parameters) - set(known)
    assert extra <= {"attn_head_dim", "dim_out", "gated"}
    with pytest.raises(BadInputError, match="16 x 20 pixels; expected 16 x 16"):
        ViT(**SHAPE)(torch.rand(1, 3, 16, 20))


@pytest.mark.parametrize(
    ("grid", "options"), [((3, 5), {}), ((4, 4), {}), ((2, 6), {"mode": "bilinear", "antialias": False})]
)
def test_positions_are_resampled_as_in_timm(fork, grid, options):
    positions = torch.rand(1, 2 + 16, 6)
    named = {"interpolation" if key == "mode" else key: value for key, value in options.items()}
    expected = timm.layers.resample_abs_pos_embed(positions, list(grid), num_prefix_tokens=2, **named)
    assert torch.equal(resample_positions(positions, grid, prefix=2, **options), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_table_says_which_families_are_stochastic(name):
    family = FAMILIES[name]
    used = [ATTENTIONS.get(part) for part in (family.attention, family.special) if part]
    assert family.stochastic == any(getattr(part, "stochastic", False) for part in used)


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
