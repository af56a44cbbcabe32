"""Vision transformers: timm's ViT in several sizes, with any attention."""

from dataclasses import dataclass
from typing import Any

from timm.models.vision_transformer import VisionTransformer

from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.models.stem import conv_stem


@dataclass(frozen=True)
class ViTShape:
    """Shape of a plain ViT; the names are timm's."""

    img_size: int
    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    num_classes: int
    mlp_ratio: float = 4.0
    drop_path_rate: float = 0.0


@dataclass(frozen=True)
class ViTWithStem(ViTShape):
    """Shape of a ViT whose stem can be chosen: `patch`, one convolution as usual, or `conv`, several (`stem.py`)."""

    stem: str = "patch"


SIZES = {
    "digits": ViTWithStem(32, 8, embed_dim=48, depth=4, num_heads=3, num_classes=10, mlp_ratio=3.0),
    "cifar": ViTWithStem(32, 4, embed_dim=192, depth=12, num_heads=3, num_classes=10),
    "tiny_patch16_224": ViTWithStem(224, 16, embed_dim=192, depth=12, num_heads=3, num_classes=1000),
    "small_patch16_224": ViTWithStem(224, 16, embed_dim=384, depth=12, num_heads=6, num_classes=1000),
    "base_patch16_224": ViTWithStem(224, 16, embed_dim=768, depth=12, num_heads=12, num_classes=1000),
}


STEMS = ("patch", "conv")


class ViT(VisionTransformer):  # type: ignore[misc]  # timm is untyped
    """timm's ViT. `create_model(**config)` builds the same architecture again."""

    config: dict[str, Any]

    @property
    def tokens(self) -> int:
        """The number of tokens in its blocks, with the class token."""
        return int(self.pos_embed.shape[1])


def build_vit(attention: str, shape: dict[str, Any]) -> ViT:
    """Build a ViT with one attention in every block.

    Raises:
        BadInputError: an unknown stem, or a convolutional one that does not fit the sizes.

    """
    plain = {key: value for key, value in shape.items() if key != "stem"}
    if shape["stem"] not in STEMS:
        raise BadInputError(f"stem = {shape['stem']!r}", expected=" or ".join(STEMS))
    model = ViT(**plain, attn_layer=ATTENTIONS.get(attention))
    if shape["stem"] == "conv":
        model.patch_embed.proj = conv_stem(shape["patch_size"], shape["embed_dim"])
    return model
