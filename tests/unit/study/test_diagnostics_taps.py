"""What the hooks read is what the layer computes with: softmax(q k^T / sqrt(D)) v, made again, is what it put out."""

import math

import pytest
import timm
import torch
from diagnosed import diagnosed
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from robustbench_kpca import create_model, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.bundle import bundled
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, load_diagnosis
from robustbench_kpca.study.diagnostics.kernel import spectrum
from robustbench_kpca.study.diagnostics.sources import ImageSource
from robustbench_kpca.study.diagnostics.taps import call, find_taps, listening

pytestmark = pytest.mark.usefixtures("fork")
FOUR = ("eigenvalues", "gamma", "projection_loss", "value_vectors")


def digits(n):
    return ImageSource(load_data("digits", limit=n).in_order())


def readings_of(model, inputs):
    taps = find_taps(model)
    with listening(taps) as readings:
        call(model, inputs)
        return taps, readings()


def attention(reading, mask=None):
    scores = reading.q @ reading.k.transpose(-2, -1) / math.sqrt(reading.k.shape[-1])
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ reading.v


def small(**options):
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    return VisionTransformer(**shape | options).eval()


IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "options",
    [{}, {"qk_norm": True}, {"scale_attn_norm": True}, {"class_token": False, "global_pool": "avg"}, {"reg_tokens": 2}],
    ids=str,
)
def test_timms_attention_fused_or_not(options):
    model = small(**options)
    for number, block in enumerate(model.blocks):
        block.attn.fused_attn = bool(number)
        if options.get("qk_norm"):
            nn.init.uniform_(block.attn.q_norm.weight)
    taps, found = readings_of(model, IMAGES)
    assert [tap.name for tap in taps] == ["blocks.0.attn", "blocks.1.attn"]
    for reading in found:
        assert torch.allclose(attention(reading), reading.h, atol=1e-5)
        assert reading.x.shape == (2, reading.k.shape[-2], 24)


@pytest.mark.parametrize(
    "name", ["vit_digits", "symvit_digits", "scaled_vit_digits", "fan_digits", "symfan_digits", "rpc_vit_digits"]
)
def test_the_projects_own_attention(name):
    model = create_model(name)
    for tap in find_taps(model):
        if hasattr(tap.module, "s"):
            nn.init.constant_(tap.module.s, 0.7)
    taps, found = readings_of(model, IMAGES)
    assert len(taps) == len(model.blocks)  # FAN's class attention, with one query, is not read
    for tap, reading in zip(taps, found, strict=True):
        if hasattr(tap.module, "pursuit"):
            q, k = (norm(x) for norm, x in ((tap.module.q_norm, reading.q), (tap.module.k_norm, reading.k)))
            assert torch.allclose(tap.module.pursuit(k, reading.v, q), reading.h, atol=1e-6)
        else:
            assert torch.allclose(attention(reading), reading.h, atol=1e-6)


def test_hooks_leave_nothing_behind_and_change_nothing():
    model = load_model("symvit_digits")
    before = model(IMAGES)
    taps, _ = readings_of(model, IMAGES)
    assert torch.equal(model(IMAGES), before)
    assert not any(tap.outputs for tap in taps)
    assert not any(module._forward_hooks for tap in taps for module in tap.watched.values())


@pytest.mark.parametrize(
    ("name", "small"),
    [("swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1)}), ("beit_base_patch16_224", {"depth": 1})],
)
def test_attention_that_is_not_known_exactly_is_refused(name, small):
    model = timm.create_model(name, **small).eval()
    with pytest.raises(BadInputError, match="no attention layer"):
        diagnosed(model, digits(2), name=name)


@pytest.mark.parametrize("name", ["primal_vit_digits", "kep_svgp_vit_digits"])
def test_attention_without_values_is_not_testable(name):
    done = diagnosed(create_model(name), digits(6), name=name, layers=[3])
    assert not done.layers[0].has_values
    outcomes = {claim: judged.outcome for claim, judged in done.claims.items()}
    assert outcomes["value_vectors"] == outcomes["gamma"] == outcomes["projection_loss"] == "not testable"
    assert outcomes["eigenvalues"] == "not supported"


class PlantedProjection(nn.Module):
    """(K, V) with V the theoretical values of K: a layer that is kernel PCA."""

    def __init__(self, dim, heads):
        super().__init__()
        self.key, self.heads = nn.Linear(dim, dim), heads
        nn.init.normal_(self.key.weight, std=0.2)

    def forward(self, x):
        k = self.key(x)
        keys = k.unflatten(-1, (self.heads, -1)).transpose(1, 2).double()
        values, log_c = spectrum(keys).orthonormal_values(keys.shape[-1])
        values = values * log_c.exp()[..., None, None]
        return torch.cat([k, values.transpose(1, 2).flatten(2).to(k)], -1)


def test_a_model_that_is_kernel_pca_is_supported_and_an_untrained_one_is_not():
    planted, plain = (create_model("symvit_digits", patch_size=4, depth=2) for _ in range(2))
    for block in planted.blocks:
        block.attn.qkv = PlantedProjection(48, 3)
    done = diagnosed(planted.eval(), digits(10), name="planted")
    outcomes = {claim: done.claims[claim].outcome for claim in FOUR}
    assert outcomes == {
        "eigenvalues": "not supported", "gamma": "supported", "projection_loss": "supported",
        "value_vectors": "supported",
    }  # fmt: skip
    statistics = done.claims["value_vectors"].statistics
    assert statistics["linear_cka_orthonormal"].estimate.value == pytest.approx(1, abs=1e-5)
    assert statistics["relative_frobenius"].estimate.value > 0  # its axes have the length of theory, not 1
    assert done.claims["projection_loss"].statistics["scaled_signed"].estimate.low >= -1e-12
    done = diagnosed(plain, digits(10), name="untrained", claims=FOUR)
    assert {judged.outcome for judged in done.claims.values()} == {"not supported"}


def test_layers_can_be_chosen_and_units_are_named(tmp_path):
    model = load_model("vit_digits")
    whole = diagnosed(model, digits(4), name="vit_digits", claims=["projection_loss"])
    part = diagnosed(model, digits(4), name="vit_digits", claims=["projection_loss"], layers=[3, 1])
    units = part.claims["projection_loss"].statistics["log10_h"].units
    assert [(unit.layer, unit.head) for unit in units] == [(layer, head) for layer in (1, 3) for head in range(3)]
    for name in ("h", "projection_error"):
        units, everything = (one.claims["projection_loss"].statistics[name].units for one in (part, whole))
        means = {(unit.layer, unit.head): unit.mean for unit in everything}
        assert all(means[unit.layer, unit.head] == pytest.approx(unit.mean) for unit in units)
    assert load_diagnosis(part.save(tmp_path)) == part
    assert isinstance(load_diagnosis(tmp_path), Diagnosis)
    for wrong in ({"layers": [4]}, {"layers": []}, {"claims": ["nothing"]}):
        with pytest.raises(BadInputError):
            diagnosed(model, digits(2), name="x", **wrong)


def test_broken_weights_and_training_mode_are_one_line():
    model = load_model("vit_digits")
    with torch.no_grad():
        model.blocks[2].attn.qkv.weight[-1] = torch.nan
    with pytest.raises(BadInputError, match="layer 2"):
        diagnosed(model, digits(2), name="x")
    with pytest.raises(BadInputError, match="training mode"):
        diagnosed(load_model("vit_digits").train(), digits(2), name="x")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in bundled() if "_lm_" not in name])
def test_every_bundled_model_can_be_read(name):
    model = load_model(name)
    taps, found = readings_of(model, digits(2).samples.tensors()[0])
    parts = (model.encoder, model.decoder) if hasattr(model, "decoder") else (model,)
    assert len(taps) == sum(len(part.blocks) for part in parts)
    assert all(reading.h is not None and reading.v is not None for reading in found)
