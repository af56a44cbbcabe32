"""Decoders for language with any causal attention: every word is predicted from the words before it.

Two designs:

- `paper`, of Teo & Nguyen (2024), arXiv:2406.13762, appendix A.4: Transformer-XL's code without memory (Dai et al.
  2019, arXiv:1901.02860). Norms after each residual sum, sinusoidal positions added to sqrt(dim) times the embedding,
  ReLU, dropout 0.1, and an adaptive softmax tied to the embedding.
- `modern`: norms before each branch and at the end, rotary positions (not in Primal attention, which has no scores),
  GELU, no dropout unless asked for, and a softmax over all words tied to the embedding.

Projections of attentions have no bias in either.
"""

from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.models._adaptive import AdaptiveHead, TiedHead
from robustbench_kpca.models._decoder import DecoderBlock, sinusoids
from robustbench_kpca.models.shapes import LanguageShape
from robustbench_kpca.types import Images, Logits

DESIGNS = ("paper", "modern")
CUTOFFS = (20_000, 40_000, 200_000)
STD = 0.02


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
        self.modern = shape.design == "modern"
        self.words = TiedHead(self.vocab_size, width) if self.modern else AdaptiveHead(self.vocab_size, width, CUTOFFS)
        self.drop = nn.Dropout(shape.dropout)
        kind = ATTENTIONS.get(attention)
        options = {"proj_bias": False, "proj_drop": shape.dropout} | ({"rotary": True} if self.modern else {})
        act = nn.GELU if self.modern else nn.ReLU
        self.blocks = nn.ModuleList(
            DecoderBlock(
                kind(width, num_heads=shape.num_heads, **options),
                width, shape.hidden, pre=self.modern, act=act(), dropout=shape.dropout,
            )
            for _ in range(shape.depth)
        )  # fmt: skip
        self.norm = nn.LayerNorm(width) if self.modern else nn.Identity()
        self.apply(_initialise)

    def forward(self, x: Images, *, last: bool = False) -> Logits:
        """Return logits of the next word at every place or, with `last`, at the last place only.

        Raises:
            BadInputError: more words than the window, no words, or words of another vocabulary.

        """
        if not 1 <= x.shape[-1] <= self.window:
            raise BadInputError(
                f"{x.shape[-1]} words at once", expected=f"1 to {self.window}, the window of the model",
                fix="show the text in windows",
            )  # fmt: skip
        encoded = self.words.embed(x)
        if not self.modern:
            width = encoded.shape[-1]
            encoded = encoded * width**0.5 + sinusoids(x.shape[-1], width, encoded)
        encoded = self.drop(encoded)
        for number, block in enumerate(self.blocks, 1):
            encoded = block(encoded, last=last and number == len(self.blocks))
        scores: Tensor = self.words(self.drop(self.norm(encoded)))
        return scores.transpose(1, 2).unsqueeze(2)


@torch.no_grad()
def _initialise(module: nn.Module) -> None:
    """Draw weights of linear layers from N(0, 0.02^2); biases are 0."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=STD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def build_language(attention: str, shape: dict[str, Any]) -> LanguageDecoder:
    """Build a decoder with one attention in every block."""
    return LanguageDecoder(attention, LanguageShape(**shape))
