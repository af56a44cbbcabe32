"""Models that hooks would misread are refused in one line, and what breaks in one claim leaves the others."""

import pytest
import torch
from diagnosed import diagnosed
from timm.models.vision_transformer import Attention, VisionTransformer
from torch import nn
from torch._subclasses import FakeTensorMode

from robustbench_kpca import load_data, load_model
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
