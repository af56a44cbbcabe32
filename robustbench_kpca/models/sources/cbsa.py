"""`cbsa:CBT-T` and `cbsa:CBT-S`: Contract-and-Broadcast Transformers of ImageNet, for files of their authors' weights.

Wen, Huang & Li (2025), "Towards Interpretable and Efficient Attention: Compressing All by Contracting a Few",
arXiv:2509.16875; as in QishuaiWen/CBSA, whose larger two networks name an attention that is not there.
"""

from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.attention.shared.heads import Heads, Tokens, merge_heads, split_heads
from robustbench_kpca.data.imagenet_classes import imagenet_wnids
from robustbench_kpca.data.request import View
from robustbench_kpca.models.source import describe, normalise_inside
from robustbench_kpca.models.xcit import halving_convolution

NETWORKS = {"CBT-T": (192, 3), "CBT-S": (384, 6)}
"""Width and heads; depth is 12."""
_REPRESENTATIVES, _STEP, _THRESHOLD = 8, 0.1, 0.01


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says.

    Raises:
        BadInputError: options, or trained weights without a file.
    """
    if name not in NETWORKS:
        raise unknown_name("CBSA model", name, sorted(NETWORKS))
    if options:
        raise BadInputError(f"'model.{next(iter(options))}' of cbsa:{name} cannot be set", expected="no options")
    if pretrained:
        raise BadInputError(f"cbsa:{name} comes without weights", fix="add --checkpoint FILE, of its authors")
    model = normalise_inside(Transformer(*NETWORKS[name]), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return describe(model, View.between(224, 256, "bilinear"), imagenet_wnids())


_Queries = Float[Tensor, "batch heads queries head_dim"]


def _attend(query: _Queries, key: Heads, value: Heads) -> tuple[_Queries, Tensor]:
    weights = (query @ key.transpose(-1, -2) * key.shape[-1] ** -0.5).softmax(-1)
    return weights @ value, weights


class ContractAndBroadcast(nn.Module):
    """Representatives look at all tokens, then at one another, and what they find goes back by the first weights.

    With w = x W in heads: R = means of w over 8 x 8 areas; (D, A) = attend(R, w, w); R' = R + s D;
    out = proj(t A^T attend(R', R', R')). The areas are of the tokens but the last, and the class token is the first.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.proj = nn.Linear(dim, dim, bias=False)
        self.step_x, self.step_rep = (nn.Parameter(torch.ones(heads, 1, 1)) for _ in range(2))
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tokens) -> Tokens:
        """Map tokens to tokens."""
        projected = self.proj(x)
        side = int(x.shape[1] ** 0.5)
        grid = projected[:, :-1].transpose(1, 2).unflatten(2, (side, side))
        means = F.adaptive_avg_pool2d(grid, _REPRESENTATIVES).flatten(2).transpose(1, 2)
        (w,), (representatives,) = split_heads(projected, 1, self.heads), split_heads(means, 1, self.heads)
        found, weights = _attend(representatives, w, w)
        moved = representatives + self.step_rep * found
        back = self.step_x * (weights.transpose(-1, -2) @ _attend(moved, moved, moved)[0])
        out: Tensor = self.to_out(merge_heads(back))
        return out


class SparseStep(nn.Module):
    """One step of ISTA towards a sparse code, not negative: relu(x + 0.1 (x W - x W^T W) - 0.01)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(dim))

    def forward(self, x: Tokens) -> Tokens:
        """Map tokens to tokens."""
        step = x @ self.weight - x @ self.weight.T @ self.weight
        return F.relu(x + _STEP * step - _THRESHOLD)


class Normed(nn.Module):
    """A function of the normalised tokens."""

    def __init__(self, dim: int, fn: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x: Tokens) -> Tokens:
        """Map tokens to tokens."""
        out: Tensor = self.fn(self.norm(x))
        return out


class Blocks(nn.Module):
    """x' = x + attention(x), and then the sparse step in place of x', not beside it."""

    def __init__(self, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        pairs = ((ContractAndBroadcast(dim, heads), SparseStep(dim)) for _ in range(depth))
        self.layers = nn.ModuleList(nn.ModuleList(Normed(dim, part) for part in pair) for pair in pairs)

    def forward(self, x: Tokens) -> Tokens:
        """Map tokens to tokens."""
        block: Any
        for block in self.layers:
            attention, sparse = block
            x = sparse(x + attention(x))
        return x


class Stem(nn.Module):
    """XCiT's stem: four convolutions of stride 2, with GELU between them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        widths = (3, dim // 8, dim // 4, dim // 2, dim)
        parts = (part for pair in pairwise(widths) for part in (halving_convolution(*pair), nn.GELU()))
        self.proj = nn.Sequential(*[*parts][:-1])

    def forward(self, x: Tensor) -> Tokens:
        """Map images to tokens."""
        out: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out


class Transformer(nn.Module):
    """A class token and 196 patches, 12 blocks, and a head on the normalised class token."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.to_patch_embedding = Stem(dim)
        self.pos_embedding = nn.Parameter(torch.zeros(1, 197, dim))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.transformer = Blocks(dim, heads, 12)
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1000))

    def forward(self, x: Float[Tensor, "batch 3 224 224"]) -> Float[Tensor, "batch 1000"]:
        """Map images to logits."""
        patches = self.to_patch_embedding(x)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], 1) + self.pos_embedding
        out: Tensor = self.mlp_head(self.transformer(tokens)[:, 0])
        return out
