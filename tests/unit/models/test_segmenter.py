"""Segmenters: the authors' layouts load strictly, sizes and numbers are theirs, and any image size goes in."""

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models import ARCHITECTURES
from robustbench_kpca.models.checkpoint import load_strictly
from robustbench_kpca.models.families import task_of
from robustbench_kpca.models.mixing import rpc_layers
from robustbench_kpca.models.source import stated_view

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}


def block(prefix, dim, projections):
    shapes = {
        "norm1.weight": (dim,), "norm1.bias": (dim,), "norm2.weight": (dim,), "norm2.bias": (dim,),
        "attn.qkv.weight": (projections * dim, dim), "attn.qkv.bias": (projections * dim,),
        "attn.proj.weight": (dim, dim), "attn.proj.bias": (dim,),
        "mlp.fc1.weight": (4 * dim, dim), "mlp.fc1.bias": (4 * dim,),
        "mlp.fc2.weight": (dim, 4 * dim), "mlp.fc2.bias": (dim,),
    }  # fmt: skip
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def official_layout(*, dim, depth, projections, decoder, prefix=1, classes=150, tokens=1024):
    found = {
        "encoder.cls_token": (1, 1, dim),
        "encoder.pos_embed": (1, tokens + prefix, dim),
        "encoder.patch_embed.proj.weight": (dim, 3, 16, 16),
        "encoder.patch_embed.proj.bias": (dim,),
    }
    for index in range(depth):
        found |= block(f"encoder.blocks.{index}", dim, projections)
    found |= {"encoder.norm.weight": (dim,), "encoder.norm.bias": (dim,)}
    found |= {"encoder.head.weight": (1000, dim), "encoder.head.bias": (1000,)}
    if prefix == 2:
        found |= {"encoder.dist_token": (1, 1, dim)}
        found |= {"encoder.head_dist.weight": (1000, dim), "encoder.head_dist.bias": (1000,)}
    if decoder == "linear":
        return found | {"decoder.head.weight": (classes, dim), "decoder.head.bias": (classes,)}
    found |= {
        "decoder.cls_emb": (1, classes, dim),
        "decoder.proj_patch": (dim, dim),
        "decoder.proj_classes": (dim, dim),
        "decoder.proj_dec.weight": (dim, dim), "decoder.proj_dec.bias": (dim,),
        "decoder.decoder_norm.weight": (dim,), "decoder.decoder_norm.bias": (dim,),
        "decoder.mask_norm.weight": (classes,), "decoder.mask_norm.bias": (classes,),
    }  # fmt: skip
    for index in range(2):
        found |= block(f"decoder.blocks.{index}", dim, projections)
    return found


def state_of(layout):
    draws = torch.Generator().manual_seed(0)
    return {name: 0.02 * torch.randn(shape, generator=draws) for name, shape in layout.items()}


LAYOUTS = [
    pytest.param("vit_segmenter_tiny", {"dim": 192, "depth": 12, "projections": 3, "decoder": "mask"}, 5.88 + 1.03),
    pytest.param("vit_segmenter_tiny", {"dim": 192, "depth": 12, "projections": 3, "decoder": "linear"}, 5.88 + 0.029),
    pytest.param("rpc_symvit_segmenter_tiny", {"dim": 192, "depth": 12, "projections": 2, "decoder": "mask"}, None),
    pytest.param(
        "symvit_segmenter_tiny", {"dim": 192, "depth": 12, "projections": 2, "decoder": "linear"}, 5.43 + 0.029
    ),
    pytest.param(
        "vit_segmenter_small", {"dim": 384, "depth": 12, "projections": 3, "decoder": "mask", "prefix": 2}, None
    ),
]


@pytest.mark.parametrize(("name", "layout", "millions"), LAYOUTS)
def test_official_layouts_load_strictly(fork, name, layout, millions):
    state = state_of(official_layout(**layout))
    if millions is not None:
        assert sum(value.numel() for value in state.values()) / 1e6 == pytest.approx(millions, abs=0.01)
    model = create_model(name, decoder=layout["decoder"], prefix_tokens=layout.get("prefix", 1))
    load_strictly(model, state, "checkpoint")
    own = model.state_dict()
    assert all(torch.equal(own.pop(name.replace("dist_token", "reg_token")), value) for name, value in state.items()
               if ".head." not in name.replace("decoder.head", "") and "head_dist" not in name)  # fmt: skip
    assert not own, "nothing of the model is left unloaded"


def test_what_does_not_fit_is_named_with_a_remedy(fork):
    state = state_of(official_layout(dim=192, depth=12, projections=2, decoder="mask"))
    model = create_model("symvit_segmenter_tiny", num_classes=19)
    with pytest.raises(BadInputError, match=r"3 mis-shaped .*num_classes=150"):
        load_strictly(model, state, "checkpoint")
    with pytest.raises(BadInputError, match=r"mis-shaped \(encoder.pos_embed .*resize_positions"):
        load_strictly(create_model("symvit_segmenter_tiny", img_size=640), state, "checkpoint")
    with pytest.raises(BadInputError, match="28 mis-shaped"):  # Q, K and V of 14 blocks
        load_strictly(create_model("vit_segmenter_tiny"), state, "checkpoint")
    del state["decoder.proj_patch"]
    with pytest.raises(BadInputError, match=r"1 missing \(decoder.proj_patch\)"):
        load_strictly(create_model("symvit_segmenter_tiny"), state, "checkpoint")


def test_positions_are_resampled_bilinearly_at_load_and_at_run_time(fork):
    """Against torch's interpolation written out; another image size must see what another window would."""
    trained = create_model("symvit_shapes", **SMALL)
    positions = trained.encoder.pos_embed.detach()
    grid = positions[:, 1:].reshape(1, 4, 4, 24).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, (6, 6), mode="bilinear", align_corners=False)
    expected = torch.cat([positions[:, :1], grid.flatten(2).transpose(1, 2)], 1)
    larger = create_model("symvit_shapes", **SMALL | {"img_size": 48})
    load_strictly(larger, trained.state_dict(), "checkpoint", resize_positions=True)
    assert torch.allclose(larger.encoder.pos_embed, expected, atol=1e-7)
    images = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(trained(images), larger(images), atol=1e-5)


def reference(state, images, *, heads, patch, rpc=()):
    """Segmenter's forward pass from its formulas, in double precision, with no layer of torch's but convolution."""
    state = {name: value.double() for name, value in state.items()}

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def attention(x, name):
        parts = linear(x, f"{name}.qkv").unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = parts
        scores = (k @ k.transpose(-1, -2) / math.sqrt(k.shape[-1])).softmax(-1)
        if name in rpc:
            scores = None
            mu = k.shape[2] * heads * k.shape[3] / (4 * k.abs().sum((-1, -2), keepdim=True))
            low, dual = torch.zeros_like(k), torch.zeros_like(k)
            for _ in range(6):
                s = k - low + dual / mu
                s = s.sign() * (s.abs() - 4 * mu).clamp_min(0)
                inner = k - s - dual / mu
                low = (inner @ inner.transpose(-1, -2) / math.sqrt(k.shape[-1])).softmax(-1) @ v
                dual = dual + mu * (k - low - s)
            return linear(low.transpose(1, 2).flatten(2), f"{name}.proj")
        return linear((scores @ v).transpose(1, 2).flatten(2), f"{name}.proj")

    def block(x, name):
        x = x + attention(norm(x, f"{name}.norm1"), f"{name}.attn")
        hidden = linear(norm(x, f"{name}.norm2"), f"{name}.mlp.fc1")
        return x + linear(hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))), f"{name}.mlp.fc2")

    mean, std = torch.tensor([0.485, 0.456, 0.406]).double(), torch.tensor([0.229, 0.224, 0.225]).double()
    x = (images.double() - mean[:, None, None]) / std[:, None, None]
    height, width = x.shape[2:]
    x = F.pad(x, (0, -width % patch, 0, -height % patch))
    name = "encoder.patch_embed.proj"
    grid = F.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], stride=patch)
    tokens = grid.flatten(2).transpose(1, 2)
    tokens = torch.cat([state["encoder.cls_token"].expand(len(x), -1, -1), tokens], 1) + state["encoder.pos_embed"]
    for index in range(sum(key.startswith("encoder.blocks") and key.endswith("norm1.bias") for key in state)):
        tokens = block(tokens, f"encoder.blocks.{index}")
    patches = norm(tokens, "encoder.norm")[:, 1:]
    classes = state["decoder.cls_emb"].expand(len(x), -1, -1)
    joint = torch.cat([linear(patches, "decoder.proj_dec"), classes], 1)
    for index in range(sum(key.startswith("decoder.blocks") and key.endswith("norm1.bias") for key in state)):
        joint = block(joint, f"decoder.blocks.{index}")
    joint = norm(joint, "decoder.decoder_norm")
    patches = joint[:, : patches.shape[1]] @ state["decoder.proj_patch"]
    classes = joint[:, patches.shape[1] :] @ state["decoder.proj_classes"]
    cosines = (patches / patches.norm(dim=-1, keepdim=True)) @ (classes / classes.norm(dim=-1, keepdim=True)).mT
    masks = norm(cosines, "decoder.mask_norm").transpose(1, 2).unflatten(2, grid.shape[2:])
    return F.interpolate(masks, scale_factor=patch, mode="bilinear")[:, :, :height, :width]


@pytest.mark.parametrize(
    ("name", "options", "rpc"),
    [
        ("symvit_shapes", {}, ()),
        ("rpc_symvit_shapes", {"iterations": 6}, ("encoder.blocks.0.attn", "decoder.blocks.0.attn")),
        ("rpc_symvit_shapes", {"iterations": 6, "decoder_layers": "none"}, ("encoder.blocks.0.attn",)),
    ],
)
def test_the_forward_pass_is_its_formula(fork, name, options, rpc):
    model = create_model(name, **SMALL, **options)
    with torch.no_grad():  # away from the initialisation, at which nothing attends
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        images = torch.rand(2, 3, 29, 26)
        expected = reference(model.state_dict(), images, heads=2, patch=8, rpc=rpc)
        found = model(images)
    assert found.shape == (2, 5, 29, 26)
    assert torch.allclose(found.double(), expected, atol=2e-4)


def test_tiny_takes_512_by_683(fork):
    model = create_model("rpc_symvit_segmenter_tiny", iterations=6, drop_path_rate=0.1)
    assert (model.classes, model.window) == (150, 512)
    assert sum(p.numel() for p in model.encoder.parameters()) + 193_000 == 5_431_720
    kinds = [type(block.attn).__name__ for part in (model.encoder, model.decoder) for block in part.blocks]
    assert kinds == ["RPCAttention", *["SymmetricAttention"] * 11, "RPCAttention", "SymmetricAttention"]
    assert [layer.pursuit.iterations for layer in rpc_layers(model)] == [6, 6]
    with torch.no_grad():
        logits = model(torch.rand(1, 3, 512, 683))
    assert logits.shape == (1, 150, 512, 683)
    assert bool(torch.isfinite(logits).all())


def test_rates_and_normalisations_are_the_authors(fork):
    # Encoder: drop path 0 to 0.1 and no dropout; decoder: dropout 0.1 wherever there is one; RPC keeps it.
    model = create_model("rpc_symvit_segmenter_tiny", drop_path_rate=0.1)
    paths = [block.drop_path1.rate for block in model.encoder.blocks]
    assert paths == pytest.approx([0.1 * index / 11 for index in range(12)])
    for block in model.decoder.blocks:
        assert block.attn.attn_drop.p == 0.1
        assert block.attn.proj_drop.p == block.mlp.drop.p == 0.1
        assert block.drop_path1.rate == 0
    assert all(block.attn.attn_drop.p == block.attn.proj_drop.p == 0 for block in model.encoder.blocks)
    assert create_model("vit_shapes", normalisation="vit").pixel_mean.flatten().tolist() == [0.5, 0.5, 0.5]
    assert create_model("vit_shapes").pixel_std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])
    with pytest.raises(BadInputError, match="normalisation = 'none'"):
        create_model("vit_shapes", normalisation="none")


@pytest.mark.parametrize("decoder", ["mask", "linear"])
def test_every_segmenter_answers_and_is_built_again(fork, decoder):
    for name in (name for name, (_, size) in ARCHITECTURES.items() if size == "shapes"):
        model = create_model(name, **SMALL, decoder=decoder)
        with torch.no_grad():
            logits = model(torch.rand(2, 3, 9, 40))
        assert logits.shape == (2, 5, 9, 40), name
        assert not model.training, name
        assert task_of(name) == "segmentation"
        assert stated_view(model).size == 32, name
        assert create_model(**model.config).state_dict().keys() == model.state_dict().keys(), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "mlp"}, "decoder = 'mlp'"),
        ({"decoder_dropout": 1.0}, "decoder_dropout = 1.0"),
        ({"img_size": 30}, "img_size = 30"),
        ({"decoder_layers": "frist"}, "'first', 'quarter', 'last', 'all' .*0 to 0"),
        ({"decoder": "linear", "decoder_layers": "first"}, "LinearDecoder"),
    ],
)
def test_bad_options(fork, options, message):
    with pytest.raises(BadInputError, match=message):
        create_model("rpc_symvit_shapes", **SMALL | options)


def test_a_pixel_depends_on_its_image_alone(fork):
    """What fills an image up to whole patches is the mean: filling it by hand changes nothing."""
    model = load_model("vit_shapes", untrained=True, **SMALL)
    image = torch.rand(1, 3, 20, 32)
    filled = model.pixel_mean.expand(1, 3, 24, 32).clone()
    filled[:, :, :20] = image
    with torch.no_grad():
        assert torch.equal(model(image), model(filled)[:, :, :20])
