"""Operations and parameters of a transformer of pictures, from its shape alone: nothing is built. No torch."""

from collections.abc import Mapping
from typing import Any

from robustbench_kpca.models.families import FAN, SEGMENTER, VIT, parts_of, shape_of

_ITERATED = ("rpc", "rpc_asymmetric")
_LAYERS = {"first": 1, "last": 1}


def operations_of(name: str, options: Mapping[str, Any]) -> int | None:
    """Return about how many operations of matrix products a picture costs, two for each multiply-add.

    A block of width d with N tokens has 2 N d^2 a linear map of queries, keys, values and outputs, 4 N d^2 r in its
    perceptron of ratio r, and 4 N^2 d in each attention: as many as RPC has iterations. Equal to what torch counts of
    ViTs with softmax, symmetric and RPC attention, and up to a fifth below it for other attentions, FAN and Segmenter.
    None for a name that is no architecture of pictures.

    Raises:
        UnknownNameError: there is no such architecture.
    """
    family, backbone = parts_of(name)
    if backbone not in (VIT, FAN, SEGMENTER):
        return None
    shape = shape_of(name, options)
    width, depth, patch, classes = (shape[key] for key in ("embed_dim", "depth", "patch_size", "num_classes"))
    patches = (shape["img_size"] // patch) ** 2
    maps = 3 if family.attention == "symmetric" else 4
    settings = {**family.options, **options}
    chosen = _LAYERS.get(str(settings.get("layers", family.layers)), depth)
    extra = chosen * (int(settings.get("iterations", 1)) - 1) if family.special in _ITERATED else 0

    def blocks(number: int, tokens: int) -> int:
        linear = 2 * tokens * width**2 * (maps + 2 * shape["mlp_ratio"])
        return int(number * (linear + 4 * tokens**2 * width))

    tokens = patches + (backbone is not FAN) * shape.get("prefix_tokens", 1)
    total: int = 6 * patches * patch**2 * width + blocks(depth, tokens) + extra * 4 * tokens**2 * width
    if backbone is not SEGMENTER:
        return total + int(2 * width * classes)
    return total + blocks(shape["decoder_depth"], patches + classes) + int(2 * patches * classes * width)


def parameters_of(name: str, options: Mapping[str, Any]) -> int:
    """Return about how many parameters an architecture of pictures has: those of its maps, patches and head."""
    family, shape = parts_of(name)[0], shape_of(name, options)
    width, patch = shape["embed_dim"], shape["patch_size"]
    block = width**2 * ((3 if family.attention == "symmetric" else 4) + 2 * shape["mlp_ratio"])
    places = (shape["img_size"] // patch) ** 2 + 3 * patch**2
    return int((shape["depth"] + shape.get("decoder_depth", 0)) * block + width * (places + shape["num_classes"]))
