"""Transformers and ConvNeXts of RobustBench's zoo (Linf), built on the timm that is here, for files of their weights.

RobustBench 1.1.1 pins timm 1.0.9, and this package needs a later one, so no environment has both. Architectures, sizes
and normalisation are those of its `model_zoo`; names of parameters are its own. None has weights without a file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.imagenet_classes import imagenet_wnids
from robustbench_kpca.data.request import View
from robustbench_kpca.models.source import describe, library, normalise_inside
from robustbench_kpca.models.weights_file import State

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CIFAR = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
_CONV_STEM = View.between(224, 256, "bicubic")
_XCIT = View.between(224, 224, "bicubic")


@dataclass(frozen=True)
class Network:
    """One entry of the zoo: how it is built, mean and std if it normalises, and how pictures become its inputs."""

    make: Callable[[Any], nn.Module]
    normalised: tuple[tuple[float, ...], tuple[float, ...]] | None
    view: View | None
    classes: int = 1000


class ConvStem(nn.Module):
    """Convolutions of 3 x 3, each with LayerNorm over channels and GELU, in place of the embedding of patches.

    Singh, Croce & Hein (2023), "Revisiting Adversarial Training for ImageNet: Architectures, Training and
    Generalization across Threat Models", arXiv:2303.01870.

    Args:
        norm: timm's LayerNorm over the channels of images.
        widths: channels after each convolution.
        strides: their strides.
        out: channels after a last convolution of 1 x 1; None: there is none.
    """

    def __init__(
        self, norm: Callable[..., nn.Module], widths: tuple[int, ...], strides: tuple[int, ...], out: int | None = None
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in zip((3, *widths), widths, strides, strict=False):
            layers += [nn.Conv2d(before, after, 3, stride, 1), norm(after, eps=1e-6), nn.GELU()]
        last = [] if out is None else [nn.Conv2d(widths[-1], out, 1)]
        self.stem = nn.Sequential(*layers, *last)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, 3, height, width) to a grid of tokens (batch, channels, rows, columns)."""
        out: Tensor = self.stem(x)
        return out


def _vit(name: str, width: int) -> Callable[[Any], nn.Module]:
    def make(timm: Any) -> nn.Module:
        model: Any = timm.create_model(name)
        model.patch_embed.proj = ConvStem(timm.layers.LayerNorm2d, (48, 96, 192, 384), (2, 2, 2, 2), width)
        return model  # type: ignore[no-any-return]

    return make


def _convnext(name: str, widths: tuple[int, ...]) -> Callable[[Any], nn.Module]:
    def make(timm: Any) -> nn.Module:
        model: Any = timm.create_model(name)
        model.stem = ConvStem(timm.layers.LayerNorm2d, widths, (2, 2, 1))
        return model  # type: ignore[no-any-return]

    return make


def _xcit(width: int, heads: int, classes: int) -> Callable[[Any], nn.Module]:
    """Debenedetti, Sehwag & Mittal (2022), "A Light Recipe to Train Robust Vision Transformers", arXiv:2209.07399.

    For CIFAR two convolutions of the stem lose their stride, so that patches have 4 pixels in place of 16.
    """

    def make(timm: Any) -> nn.Module:
        model: Any = timm.models.xcit.Xcit(
            patch_size=16, embed_dim=width, depth=12, num_heads=heads, eta=1.0, tokens_norm=True, num_classes=classes
        )
        if classes < 1000:
            for place in (0, 2):
                model.patch_embed.proj[place][0].stride = (1, 1)
            model.patch_embed.patch_size = 4
        return model  # type: ignore[no-any-return]

    return make


def _networks() -> Iterator[tuple[str, Network]]:
    singh = "imagenet/Linf/Singh2023Revisiting_{}-ConvStem"
    yield singh.format("ViT-S"), Network(_vit("deit_small_patch16_224", 384), _IMAGENET, _CONV_STEM)
    yield singh.format("ViT-B"), Network(_vit("vit_base_patch16_224", 768), None, _CONV_STEM)
    convolutions = {"tiny": (48, 96), "small": (48, 96), "base": (64, 96, 128), "large": (96, 144, 192)}
    for size, widths in convolutions.items():
        yield (
            singh.format(f"ConvNeXt-{size[0].upper()}"),
            Network(_convnext(f"convnext_{size}", widths), None, _CONV_STEM),
        )
    for letter, width, heads in (("S", 384, 8), ("M", 512, 8), ("L", 768, 16)):
        name = f"Linf/Debenedetti2022Light_XCiT-{letter}12"
        yield f"imagenet/{name}", Network(_xcit(width, heads, 1000), None, _XCIT)
        for data, classes in (("cifar10", 10), ("cifar100", 100)):
            yield f"{data}/{name}", Network(_xcit(width, heads, classes), _CIFAR[data], None, classes)


NETWORKS = dict(_networks())
"""By data set, threat and name, as `robustbench:` calls them."""


def build(path: str, pretrained: bool) -> nn.Module:
    """Return the network of a path of `NETWORKS`, described, with weights to be replaced by those of a file.

    Raises:
        BadInputError: trained weights are wanted, and no file is given.
    """
    if pretrained:
        raise BadInputError(
            f"robustbench:{path} comes without weights", fix="add --checkpoint FILE, with the weights of the zoo"
        )
    network = NETWORKS[path]
    model = network.make(library("timm", f"robustbench:{path}"))
    model.own_state = _own_state  # type: ignore[assignment] # see `load_strictly`
    if network.normalised is not None:
        normalise_inside(model, *network.normalised)
    return describe(model, network.view, imagenet_wnids() if network.classes == 1000 else None)


def _own_state(state: State) -> State:
    """Take off what RobustBench adds around a model: its normalisation, and `model.` before names."""
    return {name.removeprefix("model."): value for name, value in state.items() if not name.startswith("normalize.")}
