"""Vision transformers in several sizes, with any attention and either stem.

The convolutional stem puts small convolutions in place of the one that cuts an image into patches. Singh, Croce & Hein
(2023), "Revisiting Adversarial Training for ImageNet", arXiv:2303.01870: it makes adversarially trained ViTs more
robust, most of all against norms that they were not trained for.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.models.transformer import ViT


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of (batch, channels, height, width)."""

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """Normalise each place by itself."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def conv_stem(patch_size: int, width: int) -> nn.Sequential:
    """Return a stem that maps images (batch, 3, h, w) to (batch, width, h / patch_size, w / patch_size).

    log2(patch_size) times a 3 x 3 convolution of stride 2, a layer norm over channels and GELU; the number of channels
    doubles each time and ends at `width`. Then a 1 x 1 convolution. For width 384 and patches of 16 pixels these are
    the 48, 96, 192 and 384 channels of the authors' ViT-S. Their ViT-B (768) has the same four and widens in the last
    convolution; ours begins with 96.

    Raises:
        BadInputError: the patch size is no power of 2, or the width cannot be halved so often.
    """
    halvings = patch_size.bit_length() - 1
    if patch_size != 2**halvings or halvings < 1 or width % 2 ** (halvings - 1):
        raise BadInputError(
            f"stem = 'conv' with patch_size {patch_size} and embed_dim {width}",
            expected="a patch_size that is a power of 2, from 2, and an embed_dim that half of it divides",
        )
    layers: list[nn.Module] = []
    channels = 3
    for step in range(halvings):
        wider = width // 2 ** (halvings - 1 - step)
        layers += [nn.Conv2d(channels, wider, 3, stride=2, padding=1), ChannelNorm(wider, eps=1e-6), nn.GELU()]
        channels = wider
    return nn.Sequential(*layers, nn.Conv2d(channels, width, 1))


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
