"""Decoders for language with any causal attention: every word is predicted from the words before it.

Three designs:

- `paper`, of Teo & Nguyen (2024), arXiv:2406.13762, appendix A.4: Transformer-XL's code without memory (Dai et al.
  2019, arXiv:1901.02860). Norms after each residual sum, sinusoidal positions added to sqrt(dim) times the embedding,
  ReLU, dropout 0.1, and an adaptive softmax tied to the embedding.
- `modern`: norms before each branch and at the end, rotary positions (not in Primal attention, which has no scores),
  GELU, no dropout by default, and a softmax over all words tied to the embedding.
- `fairseq`, its `transformer_lm`, on which Chen et al. (2023), arXiv:2305.19798, build: norms before each branch and at
  the end, fairseq's positions added to sqrt(dim) times the embedding, ReLU, and a softmax over all words tied to the
  embedding. Weights begin as there: the embedding normal with variance 1 / dim, those of attentions as Glorot & Bengio
  (2010) have them, perceptrons as torch does.

Projections of attentions have a bias in the last only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.shared.heads import Tokens
from robustbench_kpca.models._adaptive import AdaptiveHead, TiedHead
from robustbench_kpca.models.shapes import LanguageShape
from robustbench_kpca.models.transformer import initialise
from robustbench_kpca.types import Images, Logits


class DecoderBlock(nn.Module):
    """Causal attention and a perceptron, each with a residual connection and a layer norm.

    `pre`: x += attn(norm1(x)); x += mlp(norm2(x)). `post`: x = norm1(x + attn(x)); x = norm2(x + mlp(x)).

    Args:
        attn: the attention; it is called with `is_causal=True`.
        dim: width.
        hidden: hidden width of the perceptron.
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


CUTOFFS = (20_000, 40_000, 200_000)
STD = 0.02


@dataclass(frozen=True)
class Design:
    """How a decoder is put together.

    Attributes:
        pre: norms before each branch and at the end, not after each residual sum.
        act: between the two layers of a perceptron.
        places: the position vectors that are added to sqrt(dim) times the embedding; None: rotary positions.
        adaptive: an adaptive softmax, not one over all words.
        released: as fairseq has it: biases in attentions, no dropout before the head, its initial weights.
    """

    pre: bool
    act: Callable[[], nn.Module]
    places: Callable[[int, int, Tensor], Tensor] | None
    adaptive: bool = False
    released: bool = False


DESIGNS = {
    "paper": Design(pre=False, act=nn.ReLU, places=sinusoids, adaptive=True),
    "modern": Design(pre=True, act=nn.GELU, places=None),
    "fairseq": Design(pre=True, act=nn.ReLU, places=sinusoids_of_fairseq, released=True),
}


class LanguageDecoder(nn.Module):
    """Maps words (batch, 1, 1, length), or distributions over them (batch, vocabulary, 1, length), to logits.

    The logits at a place are those of the next word, (batch, vocabulary, 1, length). See `types.LanguageModel`.
    """

    config: dict[str, Any]
    causal = True

    def __init__(self, attention: str, shape: LanguageShape) -> None:
        super().__init__()
        if shape.design not in DESIGNS:
            raise BadInputError(f"design = {shape.design!r}", expected=" or ".join(f"'{name}'" for name in DESIGNS))
        self.shape, self.vocab_size, self.window, width = shape, shape.vocab_size, shape.window, shape.embed_dim
        self.num_classes, self.tokens = shape.vocab_size, shape.window
        self.design = design = DESIGNS[shape.design]
        head = partial(AdaptiveHead, cutoffs=CUTOFFS) if design.adaptive else TiedHead
        self.words = head(self.vocab_size, width, std=width**-0.5 if design.released else STD)
        self.drop = nn.Dropout(shape.dropout)
        kind = ATTENTIONS.get(attention)
        options: dict[str, Any] = {"proj_drop": shape.dropout}
        options |= {"qkv_bias": True} if design.released else {"proj_bias": False}
        options |= {"rotary": True} if design.places is None else {}
        self.blocks = nn.ModuleList(
            DecoderBlock(
                kind(width, num_heads=shape.num_heads, **options),
                width,
                shape.hidden,
                pre=design.pre,
                act=design.act(),
                dropout=shape.dropout,
            )
            for _ in range(shape.depth)
        )
        self.norm = nn.LayerNorm(width) if design.pre else nn.Identity()
        if design.released:
            for name, module in self.named_modules():
                if name.endswith(".attn"):
                    module.apply(partial(initialise, draw=nn.init.xavier_uniform_))
        else:
            self.apply(partial(initialise, draw=partial(nn.init.normal_, std=STD)))

    def forward(self, x: Images, *, last: bool = False) -> Logits:
        """Return logits of the next word at every place or, with `last`, at the last place only.

        Raises:
            BadInputError: more words than the window, no words, or words of another vocabulary.
        """
        if not 1 <= x.shape[-1] <= self.window:
            raise BadInputError(
                f"{x.shape[-1]} words at once",
                expected=f"1 to {self.window}, the window of the model",
                fix="show the text in windows",
            )
        encoded = self.words.embed(x)
        if self.design.places is not None:
            width = encoded.shape[-1]
            encoded = encoded * width**0.5 + self.design.places(x.shape[-1], width, encoded)
        encoded = self.drop(encoded)
        for number, block in enumerate(self.blocks, 1):
            encoded = block(encoded, last=last and number == len(self.blocks))
        encoded = self.norm(encoded)
        scores: Tensor = self.words(encoded if self.design.released else self.drop(encoded))
        return scores.transpose(1, 2).unsqueeze(2)


def build_language(attention: str, shape: dict[str, Any]) -> LanguageDecoder:
    """Build a decoder with one attention in every block."""
    return LanguageDecoder(attention, LanguageShape(**shape))
