import math
from functools import partial

import pytest
import torch
from timm.models.xcit import ClassAttentionBlock, ConvPatchEmbed, PositionalEncodingFourier
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.fan import FAN, ChannelAttention, Stem, SymmetricClassAttention, TokenMix

TINY = {"img_size": 224, "patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 4, "num_classes": 1000}
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5, "mlp_ratio": 2}


def count(*modules):
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def random_parameters(module):
    """Biases, scales and statistics away from 0 and 1, so that none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) * 0.8 + 0.2)
        for name, weight in module.named_parameters():
            if name.endswith("weight") and weight.ndim > 1:
                weight.sub_(0.6)
    return module.double().eval()


def images(batch=3, size=32):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def tokens(batch, number, width):
    return torch.randn(batch, number, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("symmetric", "total", "mixing", "cls"),
    [(False, 7_319_920, 1_778_688, 890_496), (True, 6_801_136, 1_334_016, 816_384)],
)
def test_parameter_counts_are_the_authors(fork, symmetric, total, mixing, cls):
    model = FAN(**TINY, symmetric=symmetric)
    assert count(model) == total
    assert count(model.patch_embed) == 219_096
    assert count(model.pos_embed) == 12_480
    assert count(*(block.attn for block in model.blocks)) == mixing
    assert count(*(block.mlp for block in model.blocks)) == 4_211_760
    assert count(model.cls_attn_blocks) == cls
    assert (model.num_classes, model.img_size, model.num_features) == (1000, 224, 192)


def linear(*names):
    return {f"{name}.{part}" for name in names for part in ("weight", "bias")}


def batch_norm(*names):
    return linear(*names) | {
        f"{name}.{part}" for name in names for part in ("running_mean", "running_var", "num_batches_tracked")
    }


@pytest.mark.parametrize("symmetric", [False, True])
def test_keys_are_the_authors(fork, symmetric):
    keys = {"cls_token"} | linear("pos_embed.token_projection", "norm", "head")
    for conv in (0, 2, 4, 6):
        keys |= {f"patch_embed.proj.{conv}.0.weight"} | batch_norm(f"patch_embed.proj.{conv}.1")
    for i in range(12):
        block = f"blocks.{i}"
        keys |= {f"{block}.gamma1", f"{block}.gamma2", f"{block}.mlp.temperature", f"{block}.mlp.mlp_v.gamma"}
        keys |= linear(*(f"{block}.{name}" for name in ("norm1", "norm2", "attn.kv", "attn.proj", "mlp.q")))
        keys |= linear(*(f"{block}.mlp.{name}" for name in ("norm_v", "mlp_v.fc1", "mlp_v.fc2")))
        keys |= linear(*(f"{block}.mlp.mlp_v.dwconv.{name}" for name in ("conv1", "conv2")))
        keys |= batch_norm(f"{block}.mlp.mlp_v.dwconv.bn")
        keys |= set() if symmetric else linear(f"{block}.attn.q")
    for i in range(2):
        block = f"cls_attn_blocks.{i}"
        keys |= {f"{block}.gamma1", f"{block}.gamma2"}
        keys |= linear(*(f"{block}.{name}" for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")))
        keys |= linear(*(f"{block}.attn.{name}" for name in ("k", "v", "proj")))
        keys |= set() if symmetric else linear(f"{block}.attn.q")
    assert set(FAN(**TINY, symmetric=symmetric).state_dict()) == keys


@pytest.mark.parametrize("patch", [8, 16])
def test_the_stem_is_that_of_xcit(fork, patch):
    stem, reference = random_parameters(Stem(32, patch, 32)), ConvPatchEmbed(32, patch, embed_dim=32).double().eval()
    reference.load_state_dict(stem.state_dict())
    expected, grid = reference(images().double())
    out = stem(images().double())
    assert stem.img_size == reference.img_size
    assert out.shape[2:] == grid == (32 // patch, 32 // patch)
    assert torch.equal(out.flatten(2).transpose(1, 2), expected)


def test_the_positional_code_is_that_of_xcit_in_row_order(fork):
    model = random_parameters(FAN(**SMALL))
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    model(images().double())
    code = PositionalEncodingFourier(dim=16).double()
    code.load_state_dict(model.pos_embed.state_dict())
    expected = model.patch_embed(images().double()) + code(3, 4, 4)
    (x, grid), *_ = seen
    assert grid == (4, 4)
    for row in range(4):
        for column in range(4):
            assert torch.allclose(x[:, 4 * row + column], expected[:, :, row, column], atol=1e-12)


def test_token_mixing_is_softmax_attention_and_features_those_of_forward(fork):
    mix, x = random_parameters(TokenMix(6, 2)), tokens(2, 5, 6)
    q, kv = mix.q(x), mix.kv(x)
    heads = []
    for head in (slice(0, 3), slice(3, 6)):
        k, v = kv[..., :6][..., head], kv[..., 6:][..., head]
        heads.append(torch.softmax(q[..., head] @ k.mT / math.sqrt(3), -1) @ v)
    assert torch.allclose(mix(x), mix.proj(torch.cat(heads, -1)), atol=1e-12)
    model = FAN(**SMALL).eval()
    features = model.forward_features(images())
    assert features.shape == (3, 17, 16)
    assert torch.equal(model.forward_head(features), model(images()))
    assert torch.equal(model.forward_head(features, pre_logits=True), features[:, 0])


def depthwise(x, conv):
    height, width, channels = x.shape
    out = torch.zeros_like(x)
    for i in range(height):
        for j in range(width):
            for c in range(channels):
                out[i, j, c] = conv.bias[c]
                for di in range(3):
                    for dj in range(3):
                        if 0 <= i + di - 1 < height and 0 <= j + dj - 1 < width:
                            out[i, j, c] += conv.weight[c, 0, di, dj] * x[i + di - 1, j + dj - 1, c]
    return out


@torch.no_grad()
def test_channel_attention_against_a_literal_transcription(fork):
    heads, d, grid = 2, 3, (2, 3)
    module, u = random_parameters(ChannelAttention(heads * d, heads, 2.0)), tokens(2, 6, heads * d)
    out = module(u, grid)
    mlp, dw = module.mlp_v, module.mlp_v.dwconv
    for b in range(2):
        h = u[b] @ mlp.fc1.weight.T + mlp.fc1.bias
        conv = depthwise(h.reshape(*grid, -1), dw.conv1)
        conv = 0.5 * conv * (1 + torch.erf(conv / math.sqrt(2)))
        conv = (conv - dw.bn.running_mean) / (dw.bn.running_var + 1e-5).sqrt() * dw.bn.weight + dw.bn.bias
        h = h + mlp.gamma * depthwise(conv, dw.conv2).reshape(6, -1)
        v = h @ mlp.fc2.weight.T + mlp.fc2.bias
        centred = v - v.mean(-1, keepdim=True)
        v = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        v = v * module.norm_v.weight + module.norm_v.bias
        projected = u[b] @ module.q.weight.T + module.q.bias
        for head in range(heads):
            own = range(head * d, head * d + d)
            k = sum(u[b, :, c].exp() / u[b, :, c].exp().sum() for c in own) / d
            for c in own:
                q = projected[:, c].exp() / projected[:, c].exp().sum()
                a = module.temperature[head, 0, 0] / (1 + torch.exp(-(q * k).sum()))
                assert torch.allclose(out[b, :, c], a * v[:, c], rtol=0, atol=1e-10)


def test_class_blocks_are_xcits_and_symmetric_ones_ask_with_the_key(fork):
    block = random_parameters(FAN(**SMALL)).cls_attn_blocks[0]
    norm = partial(nn.LayerNorm, eps=1e-6)
    reference = ClassAttentionBlock(16, 2, 2, qkv_bias=True, norm_layer=norm, eta=1.0, tokens_norm=True).double()
    reference.load_state_dict(block.state_dict())
    x = tokens(2, 7, 16)
    out = block(x)
    assert torch.equal(out, reference(x))
    patches = block.norm2(x + block.gamma1 * block.norm1(x))[:, 1:]
    assert torch.allclose(out[:, 1:], 2 * patches, atol=1e-12)
    attention, x = random_parameters(SymmetricClassAttention(6, 2)), tokens(2, 5, 6)
    k, v = attention.k(x), attention.v(x)
    heads = []
    for head in (slice(0, 3), slice(3, 6)):
        weights = torch.softmax((k[:, :1, head] * k[..., head]).sum(-1) / math.sqrt(3), -1)
        heads.append(torch.einsum("bn,bnd->bd", weights, v[..., head]))
    assert torch.allclose(attention(x), attention.proj(torch.cat(heads, -1))[:, None], atol=1e-12)
    model = FAN(**SMALL, symmetric=True)
    assert all(isinstance(block.attn, SymmetricClassAttention) for block in model.cls_attn_blocks)


@pytest.mark.parametrize("symmetric", [False, True])
def test_zero_images_have_finite_gradients(fork, symmetric):
    x = torch.zeros(2, 3, 32, 32, requires_grad=True)
    for model in (FAN(**SMALL, symmetric=symmetric), FAN(**SMALL, symmetric=symmetric).eval()):
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("patch", "symmetric"), [(4, False), (8, True)])
def test_every_parameter_is_trained(fork, patch, symmetric):
    model = FAN(**{**SMALL, "patch_size": patch, "drop_path_rate": 0.1}, symmetric=symmetric).double()
    logits = model(images(8).double())
    assert logits.shape == (8, 5)
    nn.functional.cross_entropy(logits, torch.arange(8) % 5).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if not name.endswith(("q.bias", "k.bias")):  # a softmax may cancel these
            assert parameter.grad.any(), name


@pytest.mark.parametrize("change", [{"patch_size": 2}, {"img_size": 30}, {"num_heads": 3}])
def test_bad_shapes(change):
    with pytest.raises(BadInputError):
        FAN(**{**SMALL, **change})
