"""Any attention goes into chosen layers of a timm ViT that was made elsewhere."""

import pytest
import timm
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
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


def test_dropout_is_that_of_the_old_unless_another_is_asked_for(model):
    model.blocks[0].attn.attn_drop.p = 0.1
    place(model, "symmetric", "all")
    assert [block.attn.attn_drop for block in model.blocks] == [0.1, 0, 0]
    place(model, "rpc", "first", attn_drop=0.5)
    assert [block.attn.attn_drop for block in model.blocks] == [0.5, 0, 0]


@pytest.mark.parametrize("name", ["softmax", "symmetric", "rpc", "rpc_asymmetric", "scaled", "identity"])
def test_what_is_placed_turns_keys_by_their_place_as_the_old_did(fork, name):
    """Without the causal mask, the order of other tokens matters to a token through rotary positions only."""
    turned, plain = (create_model("softmax_lm_tiny", design=design, depth=1) for design in ("modern", "paper"))
    for model, rotary in ((turned, True), (plain, False)):
        attention = place(model, name, "all").blocks[0].attn.eval()
        x = torch.randn(1, 6, 32)
        moved = x[:, [1, 0, 2, 3, 4, 5]]
        same = torch.allclose(attention(x)[:, 2:], attention(moved)[:, 2:], atol=1e-6)
        assert same is (not rotary or name == "identity")


def test_bad_places(model):
    with pytest.raises(BadInputError, match="blocks"):
        place(torch.nn.Linear(2, 2), "rpc")
    with pytest.raises(BadInputError, match="0 to 2"):
        place(model, "rpc", [3])
    with pytest.raises(BadInputError, match="built"):
        place(model, "rpc", iteration=3)
