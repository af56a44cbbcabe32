"""A block of a decoder, and the positions of its words."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca.attention.shared.heads import Tokens


class DecoderBlock(nn.Module):
    """Causal attention and a perceptron, each with a residual connection and a layer norm.

    `pre`: x += attn(norm1(x)); x += mlp(norm2(x)). `post`: x = norm1(x + attn(x)); x = norm2(x + mlp(x)).

    Args:
        attn: the attention; it is called with `is_causal=True`.
        dim: width.
        hidden: of the perceptron.
        pre: where the norms are.
        act: between the two layers of the perceptron.
        dropout: after each of them.

    """

    def __init__(self, attn: nn.Module, dim: int, hidden: int, *, pre: bool, act: nn.Module, dropout: float) -> None:
        super().__init__()
        self.pre = pre
        self.attn, self.norm1, self.norm2 = attn, nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), act, nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tokens, *, last: bool = False) -> Float[Tensor, "batch shown dim"]:
        """Map tokens to tokens, or to the last of them: only that one goes through the perceptron."""
        x = x + self.attn(self.norm1(x) if self.pre else x, is_causal=True)
        x = x[:, -1:] if last else x
        if not self.pre:
            x = self.norm1(x)
        x = x + self.mlp(self.norm2(x) if self.pre else x)
        out: Tensor = x if self.pre else self.norm2(x)
        return out


def sinusoids(length: int, dim: int, like: Tensor) -> Tensor:
    """Return the position vectors of `length` places, (length, dim), the last place first in the formula: p = 0.

    With f_i = 10000^(-2 i / dim), the vector of p is [sin(p f_0), sin(p f_1), ..., cos(p f_0), cos(p f_1), ...], and p
    goes from length - 1 down to 0. Vaswani et al. (2017), arXiv:1706.03762, section 3.5, in the order of Dai et al.
    (2019), arXiv:1901.02860: the vector says how far back a word is from the last.
    """
    return _waves(torch.arange(length - 1, -1, -1), torch.arange(0, dim, 2), dim, like)


def sinusoids_of_fairseq(length: int, dim: int, like: Tensor) -> Tensor:
    """Return the position vectors of fairseq (Ott et al. 2019, arXiv:1904.01038), (length, dim), dim at least 4.

    As `sinusoids`, but with f_i = 10000^(-i / (dim / 2 - 1)), and p goes up from 2: lower ones are of its padding.
    """
    return _waves(torch.arange(2, length + 2), torch.arange(dim // 2), dim // 2 - 1, like)


def _waves(places: Tensor, numbers: Tensor, whole: int, like: Tensor) -> Tensor:
    """Return [sin(p f), cos(p f)], f_i = 10000^(-i / whole), computed in at least single precision."""
    wide = torch.promote_types(like.dtype, torch.float32)
    places, numbers = (values.to(like.device, wide) for values in (places, numbers))
    angles = places.unsqueeze(-1) * 10_000 ** (-numbers / whole)
    return torch.cat([angles.sin(), angles.cos()], -1).to(like.dtype)
