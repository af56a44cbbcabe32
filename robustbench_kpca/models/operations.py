"""Operations and parameters of a transformer, from its shape alone: nothing is built. No torch."""

from collections.abc import Mapping
from typing import Any

from robustbench_kpca.models.families import FAN, LANGUAGE, SEGMENTER, VIT, parts_of, shape_of

_ITERATED = ("rpc", "rpc_asymmetric")
_FREQUENT = 20_000
"""Words of the first part of an adaptive softmax, which every word is compared with."""


def operations_of(name: str, options: Mapping[str, Any]) -> int | None:
    """Return about how many operations of matrix products a picture or a window of words costs.

    Two for each multiply-add. A block of width d with N tokens has 2 N d^2 a linear map of queries, keys, values and
    outputs, 4 N d h in its perceptron of width h, and 4 N^2 d in each attention: as many as RPC has iterations. Equal
    to what torch counts of ViTs with softmax, symmetric and RPC attention, and up to a fifth below it for other
    attentions, FAN and Segmenter. None for other backbones.

    Raises:
        UnknownNameError: there is no such architecture.
    """
    family, backbone = parts_of(name)
    if backbone not in (VIT, FAN, SEGMENTER, LANGUAGE):
        return None
    shape = shape_of(name, options)
    width, depth = shape["embed_dim"], shape["depth"]
    maps = 3 if family.attention == "symmetric" else 4
    settings = {**family.options, **options}
    chosen = {"first": 1, "last": 1, "quarter": depth // 4}.get(str(settings.get("layers", family.layers)), depth)
    extra = chosen * (int(settings.get("iterations", 1)) - 1) if family.special in _ITERATED else 0
    hidden = shape.get("hidden") or shape["mlp_ratio"] * width

    def blocks(number: int, tokens: int) -> int:
        return int(number * (2 * tokens * width * (maps * width + 2 * hidden) + 4 * tokens**2 * width))

    if backbone is LANGUAGE:
        tokens = shape["window"]
        words = min(shape["vocab_size"], _FREQUENT if shape["design"] == "paper" else shape["vocab_size"])
        return blocks(depth, tokens) + int(extra * 4 * tokens**2 * width + 2 * tokens * width * words)
    patch, classes = shape["patch_size"], shape["num_classes"]
    patches = (shape["img_size"] // patch) ** 2
    tokens = patches + (backbone is not FAN) * shape.get("prefix_tokens", 1)
    total = blocks(depth, tokens) + int(6 * patches * patch**2 * width + extra * 4 * tokens**2 * width)
    if backbone is not SEGMENTER:
        return total + int(2 * width * classes)
    return total + blocks(shape["decoder_depth"], patches + classes) + int(2 * patches * classes * width)


def size_of(name: str, options: Mapping[str, Any]) -> int:
    """Return about how many parameters such an architecture has: those of its maps, patches or words, and head."""
    family, shape = parts_of(name)[0], shape_of(name, options)
    width, maps = shape["embed_dim"], 3 if family.attention == "symmetric" else 4
    hidden = shape.get("hidden") or shape["mlp_ratio"] * width
    rows = shape.get("vocab_size") or (
        (shape["img_size"] // shape["patch_size"]) ** 2 + 3 * shape["patch_size"] ** 2 + shape["num_classes"]
    )
    return int((shape["depth"] + shape.get("decoder_depth", 0)) * width * (maps * width + 2 * hidden) + width * rows)
