"""Ablation that leaves tokens out: an own transcription by masked keys, soundness at every place, and refusals."""

from itertools import product

import pytest
import torch
from attack_checks import rand
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import evaluate
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.models.loading import load_model
from robustbench_kpca.models.normalisation import normalise_inside
from robustbench_kpca.models.sources.ablated import Ablated
from robustbench_kpca.models.transformer import ViT
from robustbench_kpca.records.proof import Bands, Blocks, proof_of
from robustbench_kpca.records.spec import ModelInfo

SIDE, PATCH, DIM, HEADS, DEPTH, CLASSES = 16, 4, 24, 3, 3, 5
SHAPE = {"img_size": SIDE, "patch_size": PATCH, "embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS}
X = rand(0, 6, 3, SIDE, SIDE, dtype=torch.float32)
WINDOWS = [Bands(band=4, stride=4), Bands(band=3, stride=2), Blocks(block=5, stride=4), Bands(band=1)]


def network(kind, **options):
    """A transformer whose answers depend on every pixel that it sees."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = kind(**SHAPE, num_classes=CLASSES, **options)
        for value in net.parameters():
            nn.init.normal_(value, std=0.3)
    return net.eval()


NETWORKS = [(ViT, {}), (ViT, {"reg_tokens": 2}), (VisionTransformer, {}), (VisionTransformer, {"global_pool": "avg"})]


def by_masked_keys(net, image, seen):
    """All tokens run; what a hidden one says is weighed by exp(-inf). Dosovitskiy et al. (2021), equations 1 to 4."""
    own = net.state_dict()

    def linear(name, x):
        return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]

    def norm(name, x):
        return F.layer_norm(x, (DIM,), own[f"{name}.weight"], own[f"{name}.bias"], 1e-6)

    cells = torch.where(seen, image, 0.5).unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)  # (3, 4, 4, P, P)
    patches = cells.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)
    tokens = patches @ own["patch_embed.proj.weight"].flatten(1).T + own["patch_embed.proj.bias"]
    prefix = [own[name][0] for name in ("cls_token", "reg_token") if name in own]
    ahead = sum(len(part) for part in prefix)
    x = torch.cat([*prefix, tokens]) + own["pos_embed"][0]
    visible = seen.expand(SIDE, SIDE).unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).flatten(2).any(-1).flatten()
    weigh = torch.cat([torch.zeros(ahead), torch.where(visible, 0.0, -torch.inf)])
    for at in range(DEPTH):
        qkv = linear(f"blocks.{at}.attn.qkv", norm(f"blocks.{at}.norm1", x)).view(-1, 3, HEADS, DIM // HEADS)
        q, k, v = qkv.permute(1, 2, 0, 3)
        mixed = ((q @ k.transpose(1, 2)) * (DIM // HEADS) ** -0.5 + weigh).softmax(-1) @ v
        x = x + linear(f"blocks.{at}.attn.proj", mixed.transpose(0, 1).flatten(1))
        hidden = F.gelu(linear(f"blocks.{at}.mlp.fc1", norm(f"blocks.{at}.norm2", x)))
        x = x + linear(f"blocks.{at}.mlp.fc2", hidden)
    if getattr(net, "global_pool", "token") == "avg":
        return linear("head", norm("fc_norm", x[ahead:][visible].mean(0)))
    return linear("head", norm("norm", x)[0])


@pytest.mark.parametrize(("kind", "options"), NETWORKS)
@pytest.mark.parametrize("proof", WINDOWS)
@torch.no_grad()
def test_dropping_tokens_equals_masking_their_keys(kind, options, proof):
    net = network(kind, **options)
    model = Ablated(net, proof.model_copy(update={"drop": True}))
    logits, filled = model._logits(X), Ablated(net, proof)._logits(X)
    views = list(model.views(SIDE, SIDE))
    expected = torch.stack([torch.stack([by_masked_keys(net, image, seen) for seen in views]) for image in X])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert (logits - filled).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize(("kind", "options"), NETWORKS)
@pytest.mark.parametrize("proof", [Bands(band=13, stride=4), Blocks(block=SIDE, stride=SIDE), Blocks(block=14)])
@torch.no_grad()
def test_where_every_token_stays_nothing_changes(kind, options, proof):
    net = network(kind, **options)
    dropping = Ablated(net, proof.model_copy(update={"drop": True}))
    assert torch.equal(dropping._logits(X), Ablated(net, proof)._logits(X))
    if proof.name == "blocks" and proof.block == SIDE:
        assert torch.equal(dropping._logits(X)[:, 0], net(X))


@torch.no_grad()
def test_fewer_tokens_reach_the_blocks_and_the_network_is_left_as_it_was():
    net, shown = network(ViT), []
    before = net(X)
    net.blocks[1].register_forward_pre_hook(lambda _, given: shown.append(given[0].shape[1]))
    Ablated(net, Bands(band=4, stride=2, drop=True))._logits(X)
    assert shown == [1 + 4, 1 + 8] * 4  # a band in one column of tokens, a band across two
    assert torch.equal(net(X), before)


@pytest.mark.parametrize("proof", [Bands(band=4, stride=4), Bands(band=3, stride=2), Blocks(block=5, stride=4)])
@torch.no_grad()
def test_a_patch_changes_the_views_that_show_it_and_no_other(proof):
    """At every place; so at most D bands or D^2 blocks, as the radius supposes, and somewhere as many."""
    model, side = Ablated(network(ViT), proof.model_copy(update={"drop": True})), 3
    places = list(product(range(SIDE - side + 1), repeat=2))
    images = X[:1].repeat(len(places), 1, 1, 1)
    before, views = model._logits(images), list(model.views(SIDE, SIDE))
    for at, (top, left) in enumerate(places):
        images[at, :, top : top + side, left : left + side] = rand(at, side, side, dtype=torch.float32)
    changed = (model._logits(images) != before).any(-1)
    shown = torch.stack([seen.expand(SIDE, SIDE) for seen in views])
    touched = [shown[:, top : top + side, left : left + side].flatten(1).any(1) for top, left in places]
    assert torch.equal(changed, torch.stack(touched))
    size, axes = (proof.band, 1) if proof.name == "bands" else (proof.block, 2)
    assert changed.sum(1).max() == (-(-(side + size - 1) // proof.stride)) ** axes


def test_gradients_reach_every_pixel():
    x = X.clone().requires_grad_(True)
    logits = Ablated(network(ViT), Bands(band=4, stride=4, drop=True))(x)
    gradient = torch.autograd.grad(logits[:, 0].sum(), x)[0]
    assert torch.isfinite(gradient).all()
    assert (gradient != 0).all()


def test_a_record_states_whether_tokens_are_dropped():
    net, y = network(ViT), torch.arange(len(X)) % CLASSES
    how = {"protocol": "certified-patch-4", "quiet": True, "classes": CLASSES}
    filled, dropped = (
        evaluate(Ablated(normalise_inside(net, [0.5] * 3, [0.5] * 3), Bands(band=4, drop=drop)), X, y, **how)
        for drop in (False, True)
    )
    config = filled.spec.model.config
    stated = {"proof": "bands", "band": 4, "stride": 1, "fill": 0.5, "drop": False}
    assert {name: config[name] for name in config if name != "of"} == stated
    assert dropped.spec.model.config == {**config, "drop": True}
    assert filled.spec.model.network != dropped.spec.model.network
    assert proof_of(config, "") == Bands(band=4)
    assert proof_of(dropped.spec.model.config, "") == Bands(band=4, drop=True)
    wanted = [ModelInfo.agrees(record.spec.model, {"drop": True}) for record in (filled, dropped)]
    assert wanted == [False, True]


class Resized(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(F.interpolate(x, scale_factor=2.0))


def test_a_network_without_such_tokens_is_refused():
    drop = Bands(band=4, drop=True)
    plain = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for net, count in ((plain, 0), (nn.Sequential(network(ViT), network(ViT)), 2)):
        with pytest.raises(BadInputError, match=rf"^drop = true for a model with {count} vision transformers inside"):
            Ablated(net, drop)
    with pytest.raises(BadInputError, match="transformer of 17 tokens on images of 5"), torch.no_grad():
        Ablated(Resized(network(ViT)).eval(), Bands(band=4, drop=True))(X[..., :8, :8])
    with pytest.raises(BadInputError, match="drop"):
        load_model("ablated:vit_digits", band=4, drop=1)
    dropped = load_model("ablated:vit_digits", untrained=True, band=4, stride=4, drop=True, attention="primal")
    with pytest.raises(BadInputError, match="5 tokens; expected 17"):
        dropped(rand(0, 1, 3, 32, 32, dtype=torch.float32))


def test_the_command_line_takes_it(capsys, tmp_path):
    words = ["eval", "-m", "ablated:vit_digits", "--limit", "4", "-q", "-p", "certified-patch-4", "-o", str(tmp_path)]
    assert main([*words, "--set", "model.band=8", "--set", "model.stride=8", "--set", "model.drop=true"]) == 0
    assert main([*words, "--set", "model.band=8", "--set", "model.drop=yes"]) == 2
    assert "drop" in capsys.readouterr().err
