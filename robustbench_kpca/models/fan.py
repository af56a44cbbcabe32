"""FAN, the fully attentional network: attention also weighs channels, and convolutions connect neighbouring tokens.

Zhou et al. (2022), "Understanding the Robustness in Vision Transformers", arXiv:2204.12451, and its symmetric version,
the baseline of RPC-FAN: Teo & Nguyen (2024), arXiv:2406.13762, appendix. State-dict keys are the authors'; the stem,
the positional encoding and the class attention are XCiT's (`xcit.py`).
"""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.shared.heads import Heads, Tokens, merge_heads, require_heads, split_heads
from robustbench_kpca.attention.symmetric import SymmetricAttention
from robustbench_kpca.models.transformer import DropPath, LayerNorm, initialise
from robustbench_kpca.models.xcit import ClassBlock, FourierPositions, LocalPatchInteraction, halving_convolution

TokenGrid = tuple[int, int]
"""Height and width of an image, in tokens."""
PATCH_SIZES = (4, 8, 16)

_initialise = partial(initialise, draw=partial(nn.init.trunc_normal_, std=0.02))


def _heads(x: Tokens, heads: int) -> Heads:
    return split_heads(x, 1, heads)[0]


class Stem(nn.Module):
    """Maps images to features: log2(patch) 3x3 convolutions with stride 2 and BatchNorm, and GELU between them.

    Each convolution doubles the number of channels.
    """

    def __init__(self, img_size: int, patch_size: int, dim: int) -> None:
        super().__init__()
        self.img_size = (img_size, img_size)
        steps = patch_size.bit_length() - 1
        widths = [3, *(dim >> step for step in reversed(range(steps)))]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [halving_convolution(before, after), nn.GELU()]
        self.proj = nn.Sequential(*layers[:-1])

    def forward(self, images: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim height width"]:
        """Divide both sides by `patch_size`."""
        out: Tensor = self.proj(images)
        return out


class TokenMix(nn.Module):
    """out = proj(softmax(Q K^T / sqrt(D)) V), with Q = q(x) and (K, V) = kv(x)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tokens) -> Tokens:
        """Map tokens to tokens."""
        q, (k, v) = _heads(self.q(x), self.num_heads), split_heads(self.kv(x), 2, self.num_heads)
        out: Tensor = self.proj(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        return out


class ConvMlp(nn.Module):
    """out = fc2(h + gamma * DW(h)), h = fc1(x); DW: two depthwise convolutions with a GELU between them."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = LocalPatchInteraction(hidden)
        self.gamma = nn.Parameter(torch.ones(hidden))
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tokens, grid: TokenGrid) -> Tokens:
        """Map tokens to tokens; they are the rows of `grid`, one after the other."""
        hidden = self.fc1(x)
        out: Tensor = self.fc2(hidden + self.gamma * self.dwconv(hidden, *grid))
        return out


class ChannelAttention(nn.Module):
    """out = a * V, one weight a per channel, with V = norm_v(mlp_v(x)).

    In each head a = temperature * sigmoid(Q^T k), where softmax runs over the tokens: Q = softmax(q(x)), (N, D), and
    k = mean over D of softmax(x), (N).
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.mlp_v = ConvMlp(dim, int(dim * mlp_ratio))
        self.norm_v = LayerNorm(dim)
        self.q = nn.Linear(dim, dim)

    def forward(self, x: Tokens, grid: TokenGrid) -> Tokens:
        """Map tokens to tokens; they are the rows of `grid`, one after the other."""
        q = _heads(self.q(x), self.num_heads).softmax(2)
        k = _heads(x, self.num_heads).softmax(2).mean(-1, keepdim=True)
        weight = self.temperature * (q.transpose(-1, -2) @ k).sigmoid()
        out: Tensor = weight.flatten(1).unsqueeze(1) * self.norm_v(self.mlp_v(x, grid))
        return out


class Block(nn.Module):
    """x += gamma1 * attn(norm1(x)); x += gamma2 * mlp(norm2(x)), where `mlp` is the channel attention."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, *, symmetric: bool, drop_path: float) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn: nn.Module = (
            SymmetricAttention(dim, num_heads, qkv_bias=True, projection="kv")
            if symmetric
            else TokenMix(dim, num_heads)
        )
        self.norm2 = LayerNorm(dim)
        self.mlp = ChannelAttention(dim, num_heads, mlp_ratio)
        self.gamma1, self.gamma2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tokens, grid: TokenGrid) -> Tokens:
        """Map tokens to tokens; they are the rows of `grid`, one after the other."""
        x = x + self.drop_path(self.gamma1 * self.attn(self.norm1(x)))
        out: Tensor = x + self.drop_path(self.gamma2 * self.mlp(self.norm2(x), grid))
        return out


class SymmetricClassAttention(nn.Module):
    """out = proj(softmax(k_cls K^T / sqrt(D)) V), with K = k(x) and V = v(x): the class token's key is its query."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tokens) -> Float[Tensor, "batch 1 dim"]:
        """Return the new class token; the old one is the first of `x`."""
        k, v = _heads(self.k(x), self.num_heads), _heads(self.v(x), self.num_heads)
        out: Tensor = self.proj(merge_heads(F.scaled_dot_product_attention(k[:, :, :1], k, v)))
        return out


def _class_block(dim: int, num_heads: int, mlp_ratio: float, *, symmetric: bool) -> ClassBlock:
    block = ClassBlock(dim, num_heads, mlp_ratio)
    if symmetric:
        block.attn = SymmetricClassAttention(dim, num_heads)
    return block


class FAN(nn.Module):
    """Normalised images, (batch, 3, img_size, img_size), to logits, (batch, num_classes).

    The class token is added after the blocks, whose tokens are the (img_size / patch_size)^2 patches.

    `create_model(**config)` builds the same architecture again. Initialisation is that of timm's XCiT: linear weights
    and the class token truncated normal with deviation 0.02, linear biases 0, gammas and temperatures 1, convolutions
    by torch's default.
    """

    config: dict[str, Any]

    def __init__(
        self,
        *,
        img_size: int,
        patch_size: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        num_classes: int,
        mlp_ratio: float = 4.0,
        cls_layers: int = 2,
        symmetric: bool = False,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        _require_shape(img_size, patch_size, embed_dim, num_heads)
        self.img_size, self.patch_size = img_size, patch_size
        self.num_classes, self.num_features = num_classes, embed_dim
        shape = embed_dim, num_heads, mlp_ratio
        self.patch_embed = Stem(img_size, patch_size, embed_dim)
        self.pos_embed = FourierPositions(embed_dim)
        self.blocks = nn.ModuleList(Block(*shape, symmetric=symmetric, drop_path=drop_path_rate) for _ in range(depth))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.cls_attn_blocks = nn.ModuleList(_class_block(*shape, symmetric=symmetric) for _ in range(cls_layers))
        self.norm = LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(_initialise)

    def no_weight_decay(self) -> set[str]:
        """Return names of parameters without weight decay in timm's optimisers, besides biases and norms."""
        return {"cls_token"}

    @property
    def tokens(self) -> int:
        """The number of tokens in its blocks."""
        return (self.img_size // self.patch_size) ** 2

    def forward_features(self, images: Float[Tensor, "batch 3 h w"]) -> Tokens:
        """Return the normalised tokens before the head, the class token first."""
        features = self.patch_embed(images)
        batch, _, height, width = features.shape
        x = (features + self.pos_embed(height, width)).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, (height, width))
        x = torch.cat([self.cls_token.expand(batch, -1, -1), x], 1)
        for block in self.cls_attn_blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out

    def forward_head(self, x: Tokens, pre_logits: bool = False) -> Float[Tensor, "batch width"]:
        """Return logits of the class token or, with `pre_logits`, the class token itself."""
        out: Tensor = x[:, 0] if pre_logits else self.head(x[:, 0])
        return out

    def forward(self, images: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch classes"]:
        """Map normalised images to logits."""
        return self.forward_head(self.forward_features(images))


def build_fan(attention: str, shape: dict[str, Any]) -> FAN:
    """Build a FAN with `softmax` or `symmetric` attention, in its blocks and for its class token."""
    return FAN(**shape, symmetric=attention == "symmetric")


def _require_shape(img_size: int, patch_size: int, embed_dim: int, num_heads: int) -> None:
    if patch_size not in PATCH_SIZES or img_size % patch_size:
        raise BadInputError(
            f"patch_size = {patch_size} with img_size = {img_size}", expected="4, 8 or 16, and a divisor of img_size"
        )
    require_heads(embed_dim, num_heads)
