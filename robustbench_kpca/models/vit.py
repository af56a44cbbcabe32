"""Vision transformers in several sizes, with any attention and either stem."""

from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.models.stem import conv_stem
from robustbench_kpca.models.transformer import ViT

STEMS = ("patch", "conv")


def build_vit(attention: str, shape: dict[str, Any]) -> ViT:
    """Build a ViT with one attention in every block.

    Raises:
        BadInputError: an unknown stem, or a convolutional one that does not fit the sizes.

    """
    plain = {key: value for key, value in shape.items() if key != "stem"}
    if shape["stem"] not in STEMS:
        raise BadInputError(f"stem = {shape['stem']!r}", expected=" or ".join(STEMS))
    model = ViT(**plain, attention=ATTENTIONS.get(attention))
    if shape["stem"] == "conv":
        model.patch_embed.proj = conv_stem(shape["patch_size"], shape["embed_dim"])
    return model
