"""Models that hooks would misread are refused in one line, and what breaks in one claim leaves the others."""

import pytest
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
from robustbench_kpca.study.diagnostics.diagnosis import load_diagnosis
from robustbench_kpca.study.diagnostics.epochs import load_trajectory
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.sources import ImageSource

pytestmark = pytest.mark.usefixtures("fork")


def digits(n):
    return ImageSource(load_data("digits", limit=n).in_order())


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


@pytest.mark.parametrize(
    "name", ["identity_symvit_digits", "rpc_symvit_all_digits", "scaled_vit_digits", "symfan_digits"]
)
def test_attention_of_ones_own_is_not(name):
    done = diagnosed(create_model(name), digits(2), name=name, claims=["eigenvalues"])
    assert done.claims["eigenvalues"].outcome == "not supported"


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


class Two(nn.Module):
    """Two networks whose heads have different widths."""

    def __init__(self):
        super().__init__()
        self.first, self.second = vit(), vit(num_heads=6)

    def forward(self, x):
        return self.first(x) + self.second(x)


def test_heads_of_different_width_have_a_list_each():
    done = diagnosed(Two().eval(), digits(10), name="x")
    assert {layer.width for layer in done.layers} == {8, 16}
    assert {name: len(found.mean) for name, found in done.claims["eigenvalues"].profiles.items()} == {
        "by_rank": 16, "by_rank_8": 8, "by_rank_standardised": 16, "by_rank_standardised_8": 8,
        "by_rank_standardised_bound": 16, "by_rank_standardised_bound_8": 8,
    }  # fmt: skip
    overlap = done.claims["value_vectors"].statistics["subspace_overlap"]
    assert {unit.layer for unit in overlap.units} == {2, 3}  # with heads of 16 there is nothing left out of 16


def test_pursuits_of_different_lengths_have_a_list_each():
    model = create_model("rpc_symvit_all_digits")
    for number, block in enumerate(model.blocks):
        if number % 2:
            other = RPCAttention(48, 3, qkv_bias=True, iterations=3)
            other.load_state_dict(block.attn.state_dict())
            block.attn = other
    done = diagnosed(model.eval(), digits(5), name="x", claims=["sparsity", "mixing"])
    lengths = {len(found.mean) for found in done.claims["sparsity"].profiles.values()}
    assert len(lengths) == 2
    assert 3 in lengths


def test_heads_are_taken_once():
    done = diagnosed(load_model("rpc_symvit_digits"), digits(5), name="x", heads=[2, 0, 0, 2, 0], layers=[1, 0, 0])
    assert done.layers[0].heads == done.protocol.heads == (0, 2)
    assert done.protocol.layers == (0, 1)
    assert len(done.claims["eigenvalues"].statistics["largest"].units) == 4


def test_a_block_is_no_larger_than_the_data():
    done = diagnosed(load_model("vit_digits"), digits(4), name="x", claims=["eigenvalues"], block=4000)
    assert (done.protocol.block, done.protocol.images) == (4, 4)


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
    ("load", "fix"), [(load_diagnosis, "rbk diagnose MODEL"), (load_trajectory, "rbk diagnose FOLDER -o OUT")]
)
def test_a_missing_result_says_how_it_is_made(load, fix, tmp_path):
    with pytest.raises(BadInputError, match=f"cannot be read .*run: {fix}"):
        load(tmp_path)
