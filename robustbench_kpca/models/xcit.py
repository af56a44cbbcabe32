"""Parts of XCiT that FAN shares: the stem's convolution, positions, local patch interaction, and class attention.

El-Nouby et al. (2021), "XCiT: Cross-Covariance Image Transformers", arXiv:2106.09681; class attention: Touvron et al.
(2021), "Going deeper with Image Transformers" (CaiT), arXiv:2103.17239. Names of parameters and results are those of
timm's parts, bit for bit.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention.shared.heads import Tokens, merge_heads, split_heads
from robustbench_kpca.models.transformer import LayerNorm, Mlp

_WAVES = 32  # sines and cosines an axis


def halving_convolution(before: int, after: int) -> nn.Sequential:
    """Return a 3 x 3 convolution of stride 2, without bias, and BatchNorm."""
    return nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after))


class FourierPositions(nn.Module):
    """A linear map of sines and cosines of a token's row and column.

    The i-th of 32 waves of a place p of P has the angle 2 pi p / P / 10000^(2 floor(i / 2) / 32), p from 1; even ones
    are sines, odd ones cosines.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token_projection = nn.Conv2d(2 * _WAVES, dim, 1)

    def forward(self, height: int, width: int) -> Float[Tensor, "1 dim height width"]:
        """Return the positions of height x width tokens."""
        rows, columns = self._waves(height), self._waves(width)
        both = [rows.unsqueeze(1).expand(-1, width, -1), columns.unsqueeze(0).expand(height, -1, -1)]
        out: Tensor = self.token_projection(torch.cat(both, -1).unsqueeze(0).permute(0, 3, 1, 2))
        return out

    def _waves(self, places: int) -> Float[Tensor, "places waves"]:
        weight = self.token_projection.weight
        place = torch.arange(1, places + 1, device=weight.device).float()
        index = torch.arange(_WAVES, device=weight.device).float()
        angle = (place / (places + 1e-6) * (2 * math.pi)).unsqueeze(1)
        angle = angle / 10_000 ** (2 * torch.div(index, 2, rounding_mode="floor") / _WAVES)
        return torch.stack([angle[:, 0::2].sin(), angle[:, 1::2].cos()], -1).flatten(1).to(weight.dtype)


class LocalPatchInteraction(nn.Module):
    """Two depthwise 3 x 3 convolutions over the grid of tokens, with GELU and BatchNorm between them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.bn = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tokens, height: int, width: int) -> Tokens:
        """Map tokens to tokens; they are the rows of height x width, one after the other."""
        grid = x.transpose(1, 2).reshape(len(x), -1, height, width)
        out: Tensor = self.conv2(self.bn(self.act(self.conv1(grid)))).flatten(2).transpose(1, 2)
        return out


class ClassAttention(nn.Module):
    """out = proj(softmax(q K^T / sqrt(D)) V), where q is the query of the class token only."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tokens) -> Float[Tensor, "batch 1 dim"]:
        """Return the new class token; the old one is the first of `x`."""
        q, k, v = (
            split_heads(part, 1, self.num_heads)[0] for part in (self.q(x[:, 0]).unsqueeze(1), self.k(x), self.v(x))
        )
        out: Tensor = self.proj(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        return out


class ClassBlock(nn.Module):
    """Let the class token look at the others: x' = x + gamma1 [attn(n); n_1 ...] with n = norm1(x), and y = norm2(x').

    The result is y + [gamma2 mlp(y_0); y_1 ...]: so the patches are normalised and doubled, as in the authors' code.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn: nn.Module = ClassAttention(dim, num_heads)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.gamma1, self.gamma2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))

    def forward(self, x: Tokens) -> Tokens:
        """Map tokens to tokens, the class token first."""
        normed = self.norm1(x)
        y = self.norm2(x + self.gamma1 * torch.cat([self.attn(normed), normed[:, 1:]], 1))
        out: Tensor = y + torch.cat([self.gamma2 * self.mlp(y[:, :1]), y[:, 1:]], 1)
        return out
