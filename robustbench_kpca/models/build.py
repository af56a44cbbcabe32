"""Build any architecture by name, with its options checked."""

from dataclasses import replace
from typing import Any

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.registry import did_you_mean
from robustbench_kpca.models.families import normalisation_of, parts_of, shape_of, typed_options
from robustbench_kpca.models.placement import place
from robustbench_kpca.models.source import normalise_inside

_COUNTS = (
    "img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes", "cls_layers", "iterations", "rank",
    "rank_multi", "decoder_depth", "prefix_tokens", "length", "channels", "vocabulary", "texts", "vocab_size",
    "window", "hidden", "order", "blocks", "draws",
)  # fmt: skip
WIDEST = 64
"""Largest width of a perceptron, as a multiple of the model's."""


def create_model(name: str, **options: Any) -> Any:
    """Build an untrained model: images in [0, 1], (batch, 3, height, width), sequences, or words, to logits.

    Args:
        name: one of `rbk list models`, such as `rpc_symvit_tiny_patch16_224`, or of a segmenter,
            `rpc_symvit_segmenter_tiny`.
        **options: of three kinds. Of the architecture: `num_classes`, `img_size`, `depth`, `drop_path_rate`, ...; of a
            ViT also `stem`; of a segmenter also `decoder`, `decoder_depth`, `decoder_dropout`, `prefix_tokens` and
            `normalisation`; of a language model `vocab_size`, `window`, `hidden`, `design` and `dropout`. Where the
            special attention is: `layers` (`"first"`, `"quarter"`, `"last"`, `"all"`, or block indices), and in a
            segmenter `decoder_layers` (the same, or `"none"`). Of the special attention: `iterations`, `lam`,
            `threshold`, `mu_width` and `dual_sign` of RPC, in language models also `mu_span`; `form` of scaled
            attention; `rank` and `rank_multi` of Primal attention; all three of KEP-SVGP. Of any architecture,
            `attention` puts another one in place of its own, in all blocks unless `layers` says which: a name, or an
            address such as `my.py:MyAttention`. Further options are its own, such as `qk_norm="standardised"` of
            softmax attention.

    Raises:
        UnknownNameError: no such model.
        BadInputError: an option the model does not have, or a value it cannot take.

    Examples:
        >>> from robustbench_kpca import create_model
        >>> model = create_model("rpc_symvit_digits", iterations=2, lam=4.0, layers="first")
        >>> [type(block.attn).__name__ for block in model.blocks[:2]]
        ['RPCAttention', 'SymmetricAttention']
    """
    options = typed_options(name, options)
    shape = shape_of(name, options)
    family, backbone = parts_of(name)
    requested = {"attention": options["attention"]} if "attention" in options else {}
    if requested:
        aside = {*shape, "attention", "layers", "decoder_layers"}
        rest = {key: value for key, value in options.items() if key not in aside}
        family = replace(family, special=requested["attention"], layers="all", options=rest)
    special = dict(family.options)
    placed = {"layers": family.layers} if family.special else {}
    if family.special and "decoder" in shape:
        placed["decoder_layers"] = family.layers if shape["decoder"] == "mask" else "none"
    accepted = [*shape, *requested, *special, *placed]
    for option in options:
        if option not in accepted:
            raise BadInputError(f"model '{name}' has no option '{option}'", fix=did_you_mean(option, accepted))
    special, placed = ({key: options.get(key, value) for key, value in each.items()} for each in (special, placed))
    _require_counts(shape | special)
    _require_share(shape)
    _require_ratio(shape)
    try:
        model = backbone.build(family.attention, shape)
    except (TypeError, ValueError, AssertionError, RuntimeError, ZeroDivisionError) as error:
        raise BadInputError(
            f"model '{name}' cannot be built with {options} ({reason_of(error)})", fix="change one of these options"
        ) from None
    if family.special:
        _place_special(model, family.special, placed, special)
    model.config = {"name": name, **_stated(shape), **requested, **special, **placed}
    if backbone.images:
        model.pretrained_cfg = _view(shape, backbone.crop)
        normalise_inside(model, *normalisation_of(name, options))
    return model.eval()


def _place_special(model: Any, attention: str, placed: dict[str, Any], options: dict[str, Any]) -> None:
    place(getattr(model, "encoder", model), attention, placed["layers"], **options)
    if placed.get("decoder_layers", "none") != "none":
        place(model.decoder, attention, placed["decoder_layers"], **options)


def _stated(shape: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is usual: the config is part of what identifies an evaluation, and older ones do not name it."""
    usual = ("stem", "patch"), ("places", "learned")
    return {key: value for key, value in shape.items() if (key, value) not in usual}


def _view(shape: dict[str, Any], crop: float) -> dict[str, Any]:
    """Return timm's description of the model's inputs. Mean 0 and deviation 1: the model itself normalises images."""
    side = shape["img_size"]
    inputs = {"input_size": (3, side, side), "crop_pct": crop, "interpolation": "bicubic"}
    return inputs | {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "num_classes": shape["num_classes"]}


def _require_counts(options: dict[str, Any]) -> None:
    for key, value in options.items():
        whole = key in _COUNTS
        right = isinstance(value, int) if whole else isinstance(value, (int, float, str))
        least = 0 if key in ("iterations", "vocabulary") else 2 if key == "vocab_size" else 1
        if isinstance(value, bool) or not right or (whole and value < least):
            raise BadInputError(
                f"{key} = {value!r}", expected=f"a whole number, at least {least}" if whole else "a number"
            )


def _require_ratio(options: dict[str, Any]) -> None:
    ratio = options.get("mlp_ratio", 1.0)
    if not isinstance(ratio, (int, float)) or not 0 < ratio <= WIDEST:
        raise BadInputError(f"mlp_ratio = {ratio!r}", expected=f"a number above 0, at most {WIDEST}")


def _require_share(options: dict[str, Any]) -> None:
    for key in ("drop_path_rate", "decoder_dropout", "dropout"):
        if not isinstance(options.get(key, 0), (int, float)) or not 0 <= options.get(key, 0) < 1:
            raise BadInputError(f"{key} = {options[key]}", expected="at least 0 and less than 1")
