"""Encoders of sequences: padding is hidden, order matters, what does not fit is refused."""

import math

import pytest
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.rpc import Pursuit
from robustbench_kpca.models import ARCHITECTURES, create_model
from robustbench_kpca.training.recipe import load_recipe

FAMILIES = [name.removesuffix("_listops") for name in ARCHITECTURES if name.endswith("_listops")]
HIDING = ["softmax_seq", "symmetric_seq", "rpc_seq", "identity_seq"]
TINY = {"embed_dim": 8, "num_heads": 2, "num_classes": 3}


def words(batch, length, seed=0):
    return torch.randint(2, 17, (batch, 1, 1, length), generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", ["listops", "waves"])
def test_every_encoder_answers_and_is_built_again(fork, family, size):
    model = create_model(f"{family}_{size}", **TINY)
    shape = model.config
    x = words(4, shape["length"]) if shape["vocabulary"] else torch.randn(4, shape["channels"], 1, shape["length"])
    logits = model(x)
    assert logits.shape == (4, 3)
    again = create_model(**model.config)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(x), logits)
    assert torch.allclose(model(x[1:3]), logits[1:3], atol=1e-6), "a sequence depends on its batch"


@pytest.mark.parametrize("family", HIDING)
@pytest.mark.parametrize("layers", ["first", "all"])
def test_padding_changes_nothing(fork, family, layers):
    """A model of length 8 and one of length 13 with its weights agree on 8 words and 5 places of padding."""
    own = {"layers": layers} if family in ("rpc_seq", "identity_seq") else {}
    short, long = (create_model(f"{family}_listops", length=n, **TINY, **own).double() for n in (8, 13))
    state = short.state_dict()
    state["pos_embed"] = torch.cat([state["pos_embed"], torch.randn(1, 5, 8).double()], 1)
    long.load_state_dict(state)
    x = words(5, 8).double()
    padded = torch.cat([x, torch.zeros(5, 1, 1, 5).double()], -1)
    assert torch.allclose(short(x), long(padded), atol=1e-12)
    if family != "identity_seq" or layers == "first":
        moved = x.flip(-1)
        assert not torch.allclose(short(x), short(moved), atol=1e-6)


@pytest.mark.parametrize("size", ["listops", "retrieval"])
def test_the_classifier_may_have_a_hidden_layer_and_dropout_is_of_training_only(fork, size):
    model = create_model(f"softmax_seq_{size}", length=8, **TINY, dropout=0.5, head_hidden=5)
    x = words(4, 8 * model.config.get("texts", 1))
    seen = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    logits = model.eval()(x)
    first, _, second = model.head
    assert torch.allclose(logits, second(first(seen[0]).clamp_min(0)))
    assert torch.equal(model(x), logits)
    assert not torch.equal(model.train()(x), model(x))


def test_the_arenas_recipes_build_what_they_name(fork):
    """Chen et al., released code: dropout of 0.1 everywhere but on the scores that Primal-Attention lacks."""
    for name in ("pixels", "listops"):
        recipe = load_recipe(f"primal_{name}_paper", {})[1]
        model = create_model(recipe.model, **recipe.model_options)
        softmax, primal = (block.attn for block in model.blocks)
        assert (softmax.attn_drop.p, softmax.proj_drop.p, primal.proj_drop.p, model.drop.p) == (0.1, 0.1, 0.1, 0.1)
        assert model.head[0].out_features == 128
        assert (recipe.schedule, recipe.power) == ("polynomial", 1)


def test_positions_and_mu_of_padded_sequences(fork):
    model = create_model("softmax_seq_pixels", length=9, places="grid", **TINY)
    assert create_model(**model.config).config == model.config
    assert "places" not in create_model("softmax_seq_pixels", places="learned").config
    rows, columns = model.grid.view(3, 3, 8).split(4, -1)
    angles = math.pi / 3 * torch.tensor([[0.0, 0.0], [1.0, 4.0], [2.0, 8.0]])
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    assert torch.allclose(rows, waves[:, None].expand(3, 3, 4))
    assert torch.allclose(columns, waves.expand(3, 3, 4))
    k, v = torch.randn(2, 3, 4, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.ones(3, 1, 1, 6, dtype=torch.bool)
    mask[..., 4:] = False
    pursuit = Pursuit(iterations=3, lam=0.5)
    assert torch.allclose(pursuit.mu(k, mask=mask), pursuit.mu(k[..., :4, :]))
    masked, cut = pursuit(k, v, mask=mask)[..., :4, :], pursuit(k[..., :4, :], v[..., :4, :])
    assert torch.allclose(masked, cut)
    assert torch.allclose(pursuit(k, v, mask=torch.ones_like(mask)), pursuit(k, v))


@pytest.mark.parametrize("family", ["primal_seq", "scaled_seq"])
def test_attentions_without_a_mask_see_padding(fork, family):
    model = create_model(f"{family}_listops", length=8, **TINY)
    with pytest.raises(BadInputError, match="a mask"):
        model.blocks[-1].attn(torch.zeros(1, 8, 8), attn_mask=torch.ones(1, 1, 1, 8, dtype=torch.bool))
    assert bool(torch.isfinite(model(torch.cat([words(2, 5), torch.zeros(2, 1, 1, 3)], -1))).all())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("softmax_seq_waves", {"patch_size": 5}, "multiple of patch_size"),
        ("softmax_seq_listops", {"patch_size": 2}, "patch_size = 1"),
        ("softmax_seq_listops", {"length": 0}, "length = 0"),
        ("softmax_seq_retrieval", {"texts": 3}, "texts = 3"),
        ("softmax_seq_pixels", {"places": "grids"}, "'grids' with 1024"),
        ("softmax_seq_pixels", {"places": "grid", "embed_dim": 6}, "width 6"),
    ],
)
def test_what_cannot_be_built_is_refused(fork, name, options, message):
    with pytest.raises(BadInputError, match=message):
        create_model(name, **options)


def test_words_and_lengths_that_the_model_does_not_have_are_refused(fork):
    with pytest.raises(BadInputError, match=r"words numbered 0 to 9; expected 0 to 4.*vocabulary"):
        create_model("softmax_seq_listops", vocabulary=5)(torch.arange(32.0).remainder(10)[None, None, None])
    with pytest.raises(BadInputError, match=r"length"):
        create_model("softmax_seq_waves")(torch.zeros(2, 2, 1, 40))


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_of_a_pair_are_encoded_apart(fork, family):
    """The head sees u, v, u v and u - v of the means that a model of single texts, with these weights, pools."""
    pair = create_model(f"{family}_retrieval", length=8, vocabulary=17, **TINY).double()
    single = create_model(f"{family}_listops", length=8, **TINY).double()
    single.load_state_dict({key: value for key, value in pair.state_dict().items() if "head" not in key}, strict=False)
    single.head = torch.nn.Identity()
    first, second = words(4, 8).double(), words(4, 8, seed=1).double()
    second[..., 5:] = 0
    u, v = single(first), single(second)
    expected = pair.head(torch.cat([u, v, u * v, u - v], 1))
    assert torch.allclose(pair(torch.cat([first, second], -1)), expected, atol=1e-12)
    again = create_model(**pair.config).double()
    again.load_state_dict(pair.state_dict())
    assert torch.equal(again(torch.cat([second, first], -1)), pair(torch.cat([second, first], -1)))
