"""The vision transformer: patches, blocks of attention and perceptron, and a linear layer on the class token.

Dosovitskiy et al. (2021), "An Image is Worth 16x16 Words", arXiv:2010.11929, equations 1 to 4. Names of parameters,
initial weights under a seed, and logits are those of timm's `VisionTransformer`, bit for bit; importing timm itself
takes seconds (decision 25).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.shared.heads import Tokens
from robustbench_kpca.attention.softmax import SoftmaxAttention

LayerNorm = partial(nn.LayerNorm, eps=1e-6)


class DropPath(nn.Module):
    """In training, replace a residual branch of each sample by 0 with probability `rate`, else divide it by 1 - rate.

    Huang et al. (2016), "Deep Networks with Stochastic Depth", arXiv:1603.09382.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (batch, ...)."""
        if self.rate == 0 or not self.training:
            return x
        survives = x.new_empty((len(x),) + (1,) * (x.ndim - 1)).bernoulli_(1 - self.rate)
        return x * survives.div_(1 - self.rate)


class Mlp(nn.Module):
    """Two linear layers with GELU between them; dropout after each."""

    def __init__(self, dim: int, hidden: int, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.drop = nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., dim) to (..., dim)."""
        out: Tensor = self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))
        return out


class Block(nn.Module):
    """x += attn(norm1(x)); x += mlp(norm2(x))."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        *,
        attention: Any = SoftmaxAttention,
        norm: Any = LayerNorm,
        drop: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = norm(dim)
        self.attn = attention(dim, num_heads=num_heads, qkv_bias=True, attn_drop=drop, proj_drop=drop, norm_layer=norm)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = norm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tokens, attn_mask: Tensor | None = None) -> Tokens:
        """Map tokens to tokens; a mask is handed to the attention."""
        x = x + self.drop_path1(self.attn(self.norm1(x), attn_mask=attn_mask))
        out: Tensor = x + self.drop_path2(self.mlp(self.norm2(x)))
        return out


class Patches(nn.Module):
    """Cut images into patches and map each to a token: a convolution whose stride is its width.

    Args:
        img_size: side of the images; others are refused unless `any_size`.
        patch_size: side of a patch.
        dim: width of the tokens.
        any_size: whether images of other sizes, multiples of `patch_size`, are taken.
    """

    def __init__(self, img_size: int, patch_size: int, dim: int, *, any_size: bool = False) -> None:
        super().__init__()
        self.img_size, self.any_size, self.patch_size = (img_size, img_size), any_size, patch_size
        self.grid_size = (img_size // patch_size, img_size // patch_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.proj: nn.Module = nn.Conv2d(3, dim, patch_size, stride=patch_size)

    def forward(self, images: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim height width"]:
        """Map images to one feature a patch.

        Raises:
            BadInputError: images of another size than `img_size`.
        """
        if not self.any_size and images.shape[2:] != self.img_size:
            size = " x ".join(map(str, images.shape[2:]))
            raise BadInputError(f"images of {size} pixels", expected=" x ".join(map(str, self.img_size)))
        out: Tensor = self.proj(images)
        return out


class ViT(nn.Module):
    """Normalised images, (batch, 3, img_size, img_size), to logits, (batch, num_classes).

    `create_model(**config)` builds the same architecture again. Linear weights and positions are initially truncated
    normal with deviation 0.02, the class token normal with deviation 1e-6, linear biases 0.

    Args:
        attention: class of the attention of every block.
        norm: class of the layer norms.
        reg_tokens: number of further tokens after the class token.
        any_size: whether images of any size are taken; see `Patches`.
        drop_path_rate: rate of the last block; it grows linearly from 0 in the first.

    The others are named as in timm. With `num_classes` 0 there is no head.
    """

    config: dict[str, Any]
    pretrained_cfg: dict[str, Any]

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
        drop_path_rate: float = 0.0,
        reg_tokens: int = 0,
        any_size: bool = False,
        attention: Any = SoftmaxAttention,
        norm: Any = LayerNorm,
    ) -> None:
        super().__init__()
        self.num_classes, self.num_features, self.embed_dim = num_classes, embed_dim, embed_dim
        self.num_prefix_tokens = 1 + reg_tokens
        self.patch_embed = Patches(img_size, patch_size, embed_dim, any_size=any_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.reg_token = nn.Parameter(torch.empty(1, reg_tokens, embed_dim)) if reg_tokens else None
        places = self.patch_embed.num_patches + self.num_prefix_tokens
        self.pos_embed = nn.Parameter(torch.empty(1, places, embed_dim))
        rates = torch.linspace(0, drop_path_rate, depth).tolist()
        self.blocks = nn.Sequential(
            *(Block(embed_dim, num_heads, mlp_ratio, attention=attention, norm=norm, drop_path=rate) for rate in rates)
        )
        self.norm = norm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        truncated_normal_(self.pos_embed)
        for token in (self.cls_token, self.reg_token):
            if token is not None:
                nn.init.normal_(token, std=1e-6)
        self.apply(initialise)

    def no_weight_decay(self) -> set[str]:
        """Return names of parameters without weight decay in timm's optimisers, besides biases and norms."""
        return {"pos_embed", "cls_token", "reg_token"}

    @property
    def tokens(self) -> int:
        """The number of tokens in its blocks, with the class token."""
        return int(self.pos_embed.shape[1])

    def positions(self, grid: tuple[int, int]) -> Tokens:  # noqa: ARG002 (for those that take images of any size)
        """Return the position embedding of height x width patches, the prefix first: (1, prefix + patches, dim)."""
        return self.pos_embed

    def forward_features(self, images: Float[Tensor, "batch 3 h w"]) -> Tokens:
        """Return the normalised tokens before the head, the class token first."""
        features = self.patch_embed(images)
        prefix = [token for token in (self.cls_token, self.reg_token) if token is not None]
        shared = [token.expand(len(images), -1, -1) for token in prefix]
        x = torch.cat([*shared, features.flatten(2).transpose(1, 2)], 1) + self.positions(features.shape[2:])
        out: Tensor = self.norm(self.blocks(x))
        return out

    def forward_head(self, x: Tokens, pre_logits: bool = False) -> Float[Tensor, "batch width"]:
        """Return logits of the class token or, with `pre_logits`, the class token itself."""
        out: Tensor = x[:, 0] if pre_logits else self.head(x[:, 0])
        return out

    def forward(self, images: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch classes"]:
        """Map normalised images to logits."""
        return self.forward_head(self.forward_features(images))


def truncated_normal_(tensor: Tensor, std: float = 0.02) -> Tensor:
    """Fill a tensor with normal numbers between -2 and 2, as timm draws them: by the inverse distribution function.

    `nn.init.trunc_normal_` draws other numbers from the same seed.
    """
    with torch.no_grad():
        low = math.erf(-2 / std / math.sqrt(2))
        return tensor.uniform_(low, -low).erfinv_().mul_(std * math.sqrt(2)).clamp_(-2, 2)


def initialise(module: nn.Module, draw: Callable[[Tensor], Tensor] = truncated_normal_) -> None:
    """Draw the weights of a linear layer from the truncated normal distribution of deviation 0.02; its biases are 0."""
    if isinstance(module, nn.Linear):
        draw(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def resample_positions(
    positions: Tokens, grid: Sequence[int], *, prefix: int, mode: str = "bicubic", antialias: bool = True
) -> Float[Tensor, "1 place dim"]:
    """Interpolate a position embedding, (1, prefix + n * n, C), to (height, width) patches; the prefix is kept.

    Touvron et al. (2019), "Fixing the train-test resolution discrepancy", arXiv:1906.06423, interpolate so.
    """
    side = round((positions.shape[1] - prefix) ** 0.5)
    if tuple(grid) == (side, side):
        return positions
    square = positions[:, prefix:].float().unflatten(1, (side, side)).permute(0, 3, 1, 2)
    resampled = F.interpolate(square, tuple(grid), mode=mode, antialias=antialias).flatten(2).transpose(1, 2)
    return torch.cat([positions[:, :prefix], resampled.to(positions.dtype)], 1)
