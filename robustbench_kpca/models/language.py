"""Decoders for language with any causal attention: every word is predicted from the words before it.

Three designs:

- `paper`, of Teo & Nguyen (2024), arXiv:2406.13762, appendix A.4: Transformer-XL's code without memory (Dai et al.
  2019, arXiv:1901.02860). Norms after each residual sum, sinusoidal positions added to sqrt(dim) times the embedding,
  ReLU, dropout 0.1, and an adaptive softmax tied to the embedding.
- `modern`: norms before each branch and at the end, rotary positions (not in Primal attention, which has no scores),
  GELU, no dropout unless asked for, and a softmax over all words tied to the embedding.
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

from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.models._adaptive import AdaptiveHead, TiedHead
from robustbench_kpca.models._decoder import DecoderBlock, sinusoids, sinusoids_of_fairseq
from robustbench_kpca.models.shapes import LanguageShape
from robustbench_kpca.models.transformer import initialise
from robustbench_kpca.types import Images, Logits

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
