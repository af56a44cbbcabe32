"""What the hooks read is what the layer computes with; models that they would misread are refused in one line."""

import math

import pytest
import timm
import torch
from diagnosed import diagnosed
from timm.models.vision_transformer import Attention, VisionTransformer
from torch import nn
from torch._subclasses import FakeTensorMode

from robustbench_kpca import create_model, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.rpc import RPCAttention
from robustbench_kpca.study.diagnostics import CLAIMS
from robustbench_kpca.study.diagnostics.claims.planted import _problem
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, load_diagnosis
from robustbench_kpca.study.diagnostics.epochs import load_trajectory
from robustbench_kpca.study.diagnostics.kernel import spectrum
from robustbench_kpca.study.diagnostics.layer import Layer
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


def vit(**options):
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 10}
    return VisionTransformer(**shape | options).eval()


class Sharp(Attention):
    """What a user may write: timm's attention with a temperature."""

    def forward(self, x, attn_mask=None, **_):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = (10 * q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))


def sharp():
    model = vit()
    for block in model.blocks:
        block.attn = Sharp(48, 3, qkv_bias=True)
        nn.init.normal_(block.attn.qkv.weight, std=0.3)
    return model.eval()


def shared():
    model = vit(depth=4)
    for block in model.blocks[1:]:
        block.attn = model.blocks[0].attn
    return model


class Around(nn.Module):
    """A network and what is done around it."""

    def __init__(self, around):
        super().__init__()
        self.network, self.around = vit(), around

    def forward(self, x):
        return self.around(self.network, x)


def flipped(network, x):
    return network(torch.cat([x, x.flip(-1)]))[: len(x)]


def repeated(network, x):
    return network(x.repeat_interleave(4, 0)).unflatten(0, (len(x), 4)).mean(1)


class Late(Sharp):
    """Plain attention on the first block of images, sharp afterwards."""

    blocks = 0

    def forward(self, x, attn_mask=None, **options):
        self.blocks += 1
        return Attention.forward(self, x) if self.blocks == 1 else super().forward(x)


def test_every_block_of_images_is_checked():
    model = vit()
    model.blocks[1].attn = Late(48, 3, qkv_bias=True).eval()
    nn.init.normal_(model.blocks[1].attn.qkv.weight, std=0.3)
    diagnosed(model, digits(5), name="x", claims=["eigenvalues"], block=5)
    model.blocks[1].attn.blocks = 0
    with pytest.raises(BadInputError, match=r"layer 1 .*q, k and v"):
        diagnosed(model, digits(10), name="x", claims=["eigenvalues"], block=5)


def twice(network, x):
    return network(x) + network(x.flip(-1))


def never(network, x):
    return network.patch_embed(x).mean(1)[:, :10]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (sharp, "q, k and v"), (shared, "ran 4 times"),
        (lambda: Around(flipped).eval(), "10 rows for 5 images"),
        (lambda: Around(repeated).eval(), "20 rows for 5 images"),
        (lambda: Around(twice).eval(), "ran 2 times"), (lambda: Around(never).eval(), "ran 0 times"),
    ],
    ids=["temperature", "shared", "flipped", "repeated", "twice", "never"],
)  # fmt: skip
def test_models_that_would_be_misread_are_refused(make, says):
    with pytest.raises(BadInputError, match=says):
        diagnosed(make(), digits(5), name="x", claims=["eigenvalues"])


def without_values():
    model = load_model("vit_digits")
    with torch.no_grad():
        for part in (model.blocks[1].attn.qkv.weight, model.blocks[1].attn.qkv.bias):
            part[96:112] = 0  # the values of the first head
    return model


def test_a_head_without_values_keeps_the_diagnosis_whole():
    done = diagnosed(without_values(), digits(10), name="x")
    assert done.claims["value_vectors"].outcome == done.claims["gamma"].outcome == "not supported"
    units = done.claims["gamma"].statistics["residual"].units
    assert [unit.mean for unit in units if (unit.layer, unit.head) == (1, 0)] == [1]  # nothing is no eigenvector
    units = done.claims["value_vectors"].statistics["relative_frobenius"].units
    assert [unit.mean for unit in units if (unit.layer, unit.head) == (1, 0)] == [1]


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), torch.linalg.LinAlgError("did not converge")])
def test_a_claim_that_breaks_leaves_the_others(monkeypatch, broken):
    gamma = CLAIMS.get("gamma")
    plain = type(gamma).observe

    def observe(self, layer):
        if isinstance(broken, Exception):
            raise broken
        found = plain(self, layer)
        return found | {"residual": found["residual"] * broken}

    monkeypatch.setattr(type(gamma), "observe", observe)
    done = diagnosed(load_model("vit_digits"), digits(10), name="x", claims=["gamma", "eigenvalues"])
    assert done.claims["gamma"].outcome == "not testable"
    assert any(words in done.claims["gamma"].why for words in ("residual is not a finite number", "did not converge"))
    assert done.claims["eigenvalues"].outcome == "not supported"


def test_claims_run_where_the_keys_are():
    """On a made-up accelerator every operation across devices fails, as it would on a real one."""
    module, ids = RPCAttention(16, 2), ("a", "b", "c")
    _problem(17, 8, 0, ids)  # planted and solved on the processor
    with FakeTensorMode(allow_non_fake_inputs=True):
        k = torch.empty(3, 2, 17, 8, dtype=torch.float64, device="cuda")
        layer = Layer(0, "x", module, k, k, k, k, k, (0, 1), ids, 0)
        claim = CLAIMS.get("planted")
        assert set(claim.observe(layer)) == set(claim.statistics)


@pytest.mark.parametrize(
    ("load", "fix"), [(load_diagnosis, "rbk diagnose MODEL"), (load_trajectory, "rbk reproduce PACK")]
)
def test_a_missing_result_says_how_it_is_made(load, fix, tmp_path):
    with pytest.raises(BadInputError, match=f"cannot be read .*run: {fix}"):
        load(tmp_path)
