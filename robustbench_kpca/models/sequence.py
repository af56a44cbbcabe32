"""Transformer encoders for signals and for sequences of tokens, with any attention; one length, one label a sequence.

Blocks are the ViT's (pre-normalisation). Every place of the sequence is a token; there is no class token: the
classifier sees the mean over the places that are not padding. A pair of texts is two sequences, one behind the other.
Each is encoded alone, and the classifier sees both means u and v, their product and their difference, as in the Arena.
The classifier is one linear layer or, with `head_hidden`, two with ReLU between them.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, UnfitError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.models._adaptive import require_numbers
from robustbench_kpca.models.shapes import PairShape, SequenceShape
from robustbench_kpca.models.transformer import Block, truncated_normal_
from robustbench_kpca.types import PAD, Images, Logits


class SequenceTransformer(nn.Module):
    """Maps (batch, channels, 1, length), or tokens (batch, 1, 1, length), to logits; pairs are twice as long.

    Padding is hidden from every attention that takes a mask of keys: softmax, symmetric, identity and RPC, which also
    leaves it out of mu. Scaled, Primal and KEP-SVGP attention take none: they see padding as a word.
    """

    config: dict[str, Any]
    grid: Tensor | None

    def __init__(self, attention: str, shape: SequenceShape) -> None:
        super().__init__()
        if shape.vocabulary and (shape.patch_size, shape.channels) != (1, 1):
            raise UnfitError("tokens have patch_size = 1 and channels = 1")
        if shape.length % shape.patch_size:
            raise UnfitError(f"length {shape.length} is no multiple of patch_size {shape.patch_size}")
        self.texts = shape.texts if isinstance(shape, PairShape) else 1
        if self.texts > 2:
            raise UnfitError(f"texts = {self.texts}; a sample is a text or a pair, 1 or 2")
        self.shape, self.num_classes, width = shape, shape.num_classes, shape.embed_dim
        self.tokens = shape.length // shape.patch_size
        self.embed: nn.Module
        if shape.vocabulary:
            self.embed = nn.Embedding(shape.vocabulary, width, padding_idx=PAD)
        else:
            self.embed = nn.Conv2d(shape.channels, width, (1, shape.patch_size), stride=(1, shape.patch_size))
        self.pos_embed = nn.Parameter(truncated_normal_(torch.empty(1, self.tokens, width)))
        self.register_buffer("grid", _given_positions(shape.places, self.tokens, width), persistent=False)
        self.drop = nn.Dropout(shape.dropout)
        rates = [shape.drop_path_rate * index / max(shape.depth - 1, 1) for index in range(shape.depth)]
        self.blocks = nn.ModuleList(
            Block(
                width,
                shape.num_heads,
                shape.mlp_ratio,
                attention=ATTENTIONS.get(attention),
                drop=shape.dropout,
                drop_path=rate,
            )
            for rate in rates
        )
        self.norm = nn.LayerNorm(width)
        features, hidden = width if self.texts == 1 else 4 * width, shape.head_hidden
        self.head: nn.Module = nn.Linear(hidden or features, shape.num_classes)
        if hidden:
            self.head = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), self.head)

    def forward(self, x: Images) -> Logits:
        """Return (batch, classes)."""
        embedded, present = self._embedded(x)
        mask = None if present is None else present[:, None, None]
        placed = embedded + self.pos_embed
        encoded = self.drop(placed if self.grid is None else placed + self.grid)
        for block in self.blocks:
            encoded = block(encoded, attn_mask=mask if getattr(block.attn, "takes_key_mask", False) else None)
        encoded = self.norm(encoded)
        if present is None:
            pooled = encoded.mean(1)
        else:
            shares = present / present.sum(1, keepdim=True).clamp_min(1)
            pooled = (encoded * shares.unsqueeze(-1).to(encoded)).sum(1)
        if self.texts == 2:
            u, v = pooled.view(len(x), 2, -1).unbind(1)
            pooled = torch.cat([u, v, u * v, u - v], 1)
        logits: Tensor = self.head(pooled)
        return logits

    def _embedded(self, x: Images) -> tuple[Float[Tensor, "texts tokens dim"], Tensor | None]:
        """Return the embedding of every token and, of words, which are no padding; the texts of a pair in turn."""
        channels = 1 if self.shape.vocabulary else self.shape.channels
        length = self.texts * self.shape.length
        if x.shape[1:] != (channels, 1, length):
            raise BadInputError(
                f"sequences of shape {tuple(x.shape[1:])}",
                expected=f"{(channels, 1, length)}",
                fix="set the model's length and channels (--set model.length=, in recipes model_options.length)",
            )
        if not self.shape.vocabulary:
            return self.embed(x)[:, :, 0].transpose(1, 2), None
        words = x.reshape(-1, self.shape.length).long()
        require_numbers(words, self.shape.vocabulary, "vocabulary")
        return self.embed(words), words != PAD


def _given_positions(places: str, tokens: int, width: int) -> Float[Tensor, "1 tokens width"] | None:
    """Return what is added to the learned positions: nothing, or sinusoids of row and column.

    The vector of row r and column c is [sin(r f_i), cos(r f_i), sin(c f_i), cos(c f_i)]. The f_i are equally spaced,
    from half a period to two periods on a side: a choice of this project.
    """
    if places == "learned":
        return None
    side = math.isqrt(tokens)
    if places != "grid" or side**2 != tokens or width % 4:
        reason = f"places = {places!r} with {tokens} tokens of width {width}"
        raise UnfitError(f"{reason}; 'learned' fits all, 'grid' square pictures and multiples of 4")
    angles = torch.arange(side)[:, None] * torch.linspace(1, 4, width // 4) * math.pi / side
    along = torch.cat([angles.sin(), angles.cos()], 1)
    return torch.cat([along.repeat_interleave(side, 0), along.repeat(side, 1)], 1)[None]


def build_sequence(attention: str, shape: dict[str, Any]) -> SequenceTransformer:
    """Build an encoder with one attention in every block."""
    kind = PairShape if "texts" in shape else SequenceShape
    return SequenceTransformer(attention, kind(**shape))
