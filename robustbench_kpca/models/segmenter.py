"""Segmenter: a vision transformer that compares each patch with a token of every class, for images of any size.

Strudel, Garcia, Laptev & Schmid (2021), "Segmenter: Transformer for Semantic Segmentation", arXiv:2105.05633; with
symmetric and RPC attention in encoder and decoder: Teo & Nguyen (2024), arXiv:2406.13762, section 4 and appendix E.5.
State-dict keys are the authors'.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.shared.heads import Tokens
from robustbench_kpca.models.transformer import Block, ViT, initialise, resample_positions

PixelLogits = Float[Tensor, "batch classes height width"]
DECODERS = ("mask", "linear")
_CLASSIFIER = ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias")
_RENAMED = {"dist_token": "reg_token"}

_LayerNorm = partial(nn.LayerNorm, eps=1e-5)
_initialise = partial(initialise, draw=partial(nn.init.trunc_normal_, std=0.02))


class Encoder(ViT):
    """A ViT without a head, for images of any size; its position embedding is interpolated where necessary."""

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape, num_classes=0, any_size=True, norm=_LayerNorm)
        nn.init.trunc_normal_(self.cls_token, std=0.02)

    def resample_positions(self, positions: Tensor, grid: Sequence[int]) -> Tensor:
        """Interpolate a position embedding, (1, prefix + n * n, C), to (height, width) patches; the prefix is kept."""
        return resample_positions(positions, grid, prefix=self.num_prefix_tokens, mode="bilinear", antialias=False)

    def positions(self, grid: Sequence[int]) -> Tokens:
        """Return the position embedding of height x width patches, interpolated where they are not those trained on."""
        return self.resample_positions(self.pos_embed, grid)

    @staticmethod
    def own_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a state dict of the authors, or of a classifier, with the names of this model.

        The classification head is left out: the segmenter does not use it. DeiT's distillation token is a register
        token here.
        """
        return {_RENAMED.get(name, name): value for name, value in state.items() if name not in _CLASSIFIER}


class LinearDecoder(nn.Module):
    """A linear layer maps each patch to its logits."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(dim, classes)
        self.apply(_initialise)

    def forward(self, patches: Tokens) -> Float[Tensor, "batch tokens classes"]:
        """Map patches to logits."""
        out: Tensor = self.head(patches)
        return out


class MaskDecoder(nn.Module):
    """Blocks process patches p and class embeddings c together; the logits of a patch are their scalar products.

    logits = LayerNorm(p' c'^T / (|p'| |c'|)), over the classes, with p' = p P and c' = c Q (Strudel et al., 2021,
    section 3.2).
    """

    def __init__(
        self, dim: int, classes: int, *, depth: int, num_heads: int, mlp_ratio: float, attention: str, dropout: float
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(dim, num_heads, mlp_ratio, attention=ATTENTIONS.get(attention), norm=_LayerNorm, drop=dropout)
            for _ in range(depth)
        )
        self.cls_emb = nn.Parameter(torch.empty(1, classes, dim))
        self.proj_dec = nn.Linear(dim, dim)
        self.proj_patch = nn.Parameter(dim**-0.5 * torch.randn(dim, dim))
        self.proj_classes = nn.Parameter(dim**-0.5 * torch.randn(dim, dim))
        self.decoder_norm = _LayerNorm(dim)
        self.mask_norm = _LayerNorm(classes)
        self.apply(_initialise)
        nn.init.trunc_normal_(self.cls_emb, std=0.02)

    def forward(self, patches: Tokens) -> Float[Tensor, "batch tokens classes"]:
        """Map patches to logits."""
        classes = self.cls_emb.expand(len(patches), -1, -1)
        x = torch.cat([self.proj_dec(patches), classes], 1)
        for block in self.blocks:
            x = block(x)
        patches, classes = self.decoder_norm(x).split([patches.shape[1], classes.shape[1]], 1)
        cosines = F.normalize(patches @ self.proj_patch, dim=-1) @ F.normalize(classes @ self.proj_classes, dim=-1).mT
        out: Tensor = self.mask_norm(cosines)
        return out


class Segmenter(nn.Module):
    """Normalised images, (batch, 3, height, width), to logits of every pixel, (batch, classes, height, width).

    Images may have any size: they are padded at the bottom and on the right with 0, the mean, to whole patches, and the
    padding is cut off from the logits. The logits of patches are interpolated bilinearly.

    Attributes:
        config: `create_model(**config)` builds the same architecture again.
        classes: their number.
        window: side of the images that it is trained on.
    """

    config: dict[str, Any]

    def __init__(self, encoder: Encoder, decoder: nn.Module, *, classes: int, window: int, patch_size: int) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.classes = self.num_classes = classes
        self.window, self.patch_size = window, patch_size

    def forward(self, images: Float[Tensor, "batch 3 h w"]) -> PixelLogits:
        """Map normalised images to logits."""
        height, width = images.shape[2:]
        padded = F.pad(images, (0, -width % self.patch_size, 0, -height % self.patch_size))
        rows, columns = (side // self.patch_size for side in padded.shape[2:])
        patches = self.encoder.forward_features(padded)[:, self.encoder.num_prefix_tokens :]
        logits = self.decoder(patches).mT.unflatten(2, (rows, columns))
        resized: Tensor = F.interpolate(logits, padded.shape[2:], mode="bilinear")
        return resized[:, :, :height, :width]

    def no_weight_decay(self) -> set[str]:
        """Return names of parameters without weight decay in timm's optimisers, besides biases and norms."""
        return {"encoder.cls_token", "encoder.reg_token", "encoder.pos_embed", "decoder.cls_emb"}

    @staticmethod
    def own_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a state dict of the authors with the names of this model; theirs also holds a classification head."""
        part = "encoder."
        encoder = {name.removeprefix(part): value for name, value in state.items() if name.startswith(part)}
        rest = {name: value for name, value in state.items() if not name.startswith(part)}
        return {f"{part}{name}": value for name, value in Encoder.own_state(encoder).items()} | rest


def build_segmenter(attention: str, shape: dict[str, Any]) -> Segmenter:
    """Build a Segmenter with one attention in every block of encoder and decoder."""
    shape = dict(shape)
    decoder, depth, dropout = (shape.pop(key) for key in ("decoder", "decoder_depth", "decoder_dropout"))
    classes, prefix = shape.pop("num_classes"), shape.pop("prefix_tokens")
    shape.pop("normalisation")
    if decoder not in DECODERS:
        raise BadInputError(f"decoder = {decoder!r}", expected=" or ".join(f"'{choice}'" for choice in DECODERS))
    if shape["img_size"] % shape["patch_size"]:
        raise BadInputError(f"img_size = {shape['img_size']}", expected=f"a multiple of {shape['patch_size']}")
    encoder = Encoder(**shape, reg_tokens=prefix - 1, attention=ATTENTIONS.get(attention))
    dim = shape["embed_dim"]
    head: nn.Module = LinearDecoder(dim, classes)
    if decoder == "mask":
        head = MaskDecoder(
            dim,
            classes,
            depth=depth,
            num_heads=shape["num_heads"],
            mlp_ratio=shape["mlp_ratio"],
            attention=attention,
            dropout=dropout,
        )
    return Segmenter(encoder, head, classes=classes, window=shape["img_size"], patch_size=shape["patch_size"])
