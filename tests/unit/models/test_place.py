"""Any attention goes into chosen layers of a timm ViT that was made elsewhere."""

import pytest
import timm
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.shared.heads import MultiHeadAttention
from robustbench_kpca.models import create_model, place


@pytest.fixture
def model(fork):
    shape = {"img_size": 32, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **shape).eval()


@pytest.mark.parametrize("name", ATTENTIONS.names())
def test_every_attention_in_chosen_layers(model, name):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert place(model, name, [0, 2]) is model
    assert [type(block.attn) is ATTENTIONS.get(name) for block in model.blocks] == [True, False, True]
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    after = model.state_dict()
    assert torch.equal(after["blocks.2.attn.proj.weight"], before["blocks.2.attn.proj.weight"])
    if "blocks.0.attn.qkv.weight" in after:
        kept = after["blocks.0.attn.qkv.weight"]
        assert torch.equal(kept, before["blocks.0.attn.qkv.weight"][-len(kept) :])


@pytest.mark.parametrize("training", [False, True])
def test_what_is_placed_has_the_mode_and_precision_of_the_old(model, training):
    place(model.double().train(training), "rpc", "first", attn_drop=0.5)
    assert {part.training for part in model.modules()} == {training}
    assert {value.dtype for value in model.parameters()} == {torch.float64}
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    assert torch.equal(model(images), model(images)) is not training


def test_what_is_placed_keeps_dropout_and_bad_places_are_refused(model):
    model.blocks[0].attn.attn_drop.p = 0.1
    place(model, "symmetric", "all")
    assert [block.attn.attn_drop.p for block in model.blocks] == [0.1, 0, 0]
    place(model, "rpc", "first", attn_drop=0.5)
    assert [block.attn.attn_drop.p for block in model.blocks] == [0.5, 0, 0]
    with pytest.raises(BadInputError, match="blocks"):
        place(torch.nn.Linear(2, 2), "rpc")
    with pytest.raises(BadInputError, match="0 to 2"):
        place(model, "rpc", [3])
    with pytest.raises(BadInputError, match="built"):
        place(model, "rpc", iteration=3)


@pytest.mark.parametrize("name", ["softmax", "rpc", "scaled", "identity"])
def test_what_is_placed_turns_keys_by_their_place_as_the_old_did(fork, name):
    """Without the causal mask, the order of other tokens matters to a token through rotary positions only."""
    turned, plain = (create_model("softmax_lm_tiny", design=design, depth=1) for design in ("modern", "paper"))
    for model, rotary in ((turned, True), (plain, False)):
        attention = place(model, name, "all").blocks[0].attn.eval()
        x = torch.randn(1, 6, 32)
        moved = x[:, [1, 0, 2, 3, 4, 5]]
        same = torch.allclose(attention(x)[:, 2:], attention(moved)[:, 2:], atol=1e-6)
        assert same is (not rotary or name == "identity")


class Plain(MultiHeadAttention):
    """Softmax attention from its formula; it knows neither later tokens nor padding."""

    def attend(self, q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class PlainSymmetric(Plain):
    """The same where keys are queries."""

    symmetric = True

    def attend(self, q, k, v):
        assert torch.equal(q, k)
        return super().attend(q, k, v)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fan_digits", Plain), ("softmax_seq_waves", Plain), ("vit_shapes", Plain), ("softmax_lm_tiny", Plain),
        ("symvit_digits", PlainSymmetric),
    ],
)  # fmt: skip
def test_a_class_of_three_lines_takes_its_place_in_every_backbone(fork, name, kind, monkeypatch):
    """It computes what the attention in its place did, with the same parameters, so the logits are the same."""
    monkeypatch.setitem(ATTENTIONS.added, "plain", kind)
    model = create_model(name)
    x = torch.rand(2, 3, *[64 if name.endswith("shapes") else 32] * 2)
    if name.endswith("lm_tiny"):
        x = torch.randint(1, 50, (2, 1, 1, 9)).float()
    elif name.endswith("waves"):
        x = torch.rand(2, model.shape.channels, 1, model.shape.length)
    with torch.no_grad():
        before = model(x)
        built = create_model(attention="plain", **model.config)
        built.load_state_dict(place(model, kind, "all").state_dict())
        assert torch.allclose(model(x), before, atol=1e-5)
        assert torch.allclose(built(x), before, atol=1e-5)
    assert built.config["attention"] == "plain"
    assert {type(block.attn) for block in getattr(built, "encoder", built).blocks} == {kind}


def test_an_attention_is_asked_for_by_name_in_some_layers_with_its_options(fork):
    model = create_model("vit_digits", attention="rpc", layers="first", iterations=2)
    assert [type(block.attn).__name__ for block in model.blocks] == ["RPCAttention", *["SoftmaxAttention"] * 3]
    assert model.blocks[0].attn.pursuit.iterations == 2
    assert create_model(**model.config).config == model.config
    with pytest.raises(BadInputError, match="no attention named 'rpcc'"):
        create_model("vit_digits", attention="rpcc")
    with pytest.raises(BadInputError, match="RPCAttention cannot be built"):
        create_model("vit_digits", attention="rpc", rankk=3)
